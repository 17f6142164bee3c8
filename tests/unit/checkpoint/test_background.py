"""Saves that are completed while training goes on: their files, their failures, and their end."""
import os
import resource
import signal
import subprocess
import threading
import time

import numpy as np
import pytest

import mxhybrid
from mxhybrid import CheckpointError
from mxhybrid.base import memory_copy
from mxhybrid.checkpoint import background, files, folder
from mxhybrid.row_store.row_store import RowStore

from ...helpers.checkpoints import assert_same_files
from ...helpers.programs import run_program
from .dynamic_training import BIG, Training


@pytest.fixture
def in_copies(monkeypatch):
    """Return a function that sets what forked processes do before they write rows."""
    save, parent = RowStore.save, os.getpid()

    def set_action(action):
        def act_and_save(store, *arguments):
            if os.getpid() != parent:
                action()
            return save(store, *arguments)
        monkeypatch.setattr(RowStore, 'save', act_and_save)
    return set_action


@pytest.fixture
def gate(tmp_path, in_copies):
    """Forked processes write rows only when this file exists."""
    path = tmp_path / 'gate'

    def wait():
        while not path.exists():
            time.sleep(0.01)
    in_copies(wait)
    return path


@pytest.mark.parametrize('memory', [0, 1 << 30])
def test_files_are_those_of_the_call(tmp_path, gate, monkeypatch, memory):
    monkeypatch.setattr(background, 'MEMORY_BYTES', memory)
    training = Training(capacity=100)
    waited = training.fit_and_save(str(tmp_path / 'waited'), 0, 5, extra=[1])
    extra = [1]
    assert training.save(str(tmp_path / 'later'), 5, extra=extra, wait=False) is None
    extra.append(2)
    training.fit(5, 8)
    assert os.listdir(str(tmp_path / 'later')) == ['.writing']
    gate.touch()
    path = mxhybrid.checkpoint.wait()
    assert path == str(tmp_path / 'later' / '00000001-step-5')
    assert_same_files(waited, path)
    assert mxhybrid.checkpoint.wait() is None


def test_deltas_have_the_changes_until_the_call(training, tmp_path, gate):
    keys = np.arange(40) * (BIG // 50)
    gate.touch()
    training.fit_and_save(str(tmp_path), 0, 4, wait=False)
    mxhybrid.checkpoint.wait()
    gate.unlink()
    for step in (6, 8):
        training.fit(step - 2, step, most=20)
        rows = training.net.items(keys).asnumpy(), training.net.users(keys * 7 - 5).asnumpy()
        training.save(str(tmp_path), step, delta=True, wait=False)
        training.fit(step, step + 1, most=20)
        gate.touch()
        mxhybrid.checkpoint.wait()
        gate.unlink()
        with mxhybrid.checkpoint.open(str(tmp_path), verify=True) as tables:
            assert tables.step == step
            for name, stored_keys, expected in zip(('items', 'users'), (keys, keys * 7 - 5), rows):
                np.testing.assert_array_equal(tables[name].rows(stored_keys), expected)
    whole, delta, _ = sorted(os.listdir(str(tmp_path)))
    paths = [str(tmp_path / name / 'table-00000' / '0' / 'keys.npy') for name in (whole, delta)]
    assert os.path.getsize(paths[1]) < os.path.getsize(paths[0])


def test_another_save_or_load_waits(training, tmp_path, gate):
    training.fit_and_save(str(tmp_path), 0, 2, wait=False)
    opener = subprocess.Popen(['sh', '-c', 'sleep 0.3; touch %s' % gate])
    training.save(str(tmp_path), 3, wait=False)  # waits for the gate
    assert folder.names(str(tmp_path)) == ['00000001-step-2']
    assert training.load(str(tmp_path)).step == 3
    opener.wait()


@pytest.mark.parametrize('call', ['wait', 'save', 'load'])
def test_failure_is_raised_once_by_the_next_call(messages, training, tmp_path, in_copies, call):
    training.fit(0, 2)
    in_copies(lambda: os.kill(os.getpid(), signal.SIGKILL))
    training.save(str(tmp_path), 2, wait=False)
    with pytest.raises(CheckpointError, match='step 2, saved in the background: .*was ended by signal 9'):
        {'wait': mxhybrid.checkpoint.wait, 'save': lambda: training.save(str(tmp_path), 3),
         'load': lambda: training.load(str(tmp_path))}[call]()
    assert os.listdir(str(tmp_path)) == []
    assert 'could not be saved in the background' in messages.text
    assert training.save(str(tmp_path), 4, delta=True) == str(tmp_path / '00000001-step-4')


@pytest.mark.parametrize('can_write', [True, False])
def test_error_of_a_copy_is_named(training, tmp_path, in_copies, can_write):
    """Worker 0 learns of the error even if the disk has no room for its report."""
    def fail():
        if not can_write:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        raise OSError(28, 'No space left on device')
    training.fit(0, 2)
    in_copies(fail)
    training.save(str(tmp_path), 2, wait=False)
    cause = 'OSError.*No space left' if can_write else 'the disk is full'
    with pytest.raises(CheckpointError, match='rows of dynamic tables cannot be saved: ' + cause):
        mxhybrid.checkpoint.wait()


def test_a_report_that_was_read_is_not_written_again(tmp_path, monkeypatch):
    """The reader removes the directory of reports; a file that appeared meanwhile would fail it."""
    path, wait = str(tmp_path / 'report'), os.waitpid

    def wait_and_read(*arguments):
        ended = wait(*arguments)
        os.unlink(path)
        return ended
    monkeypatch.setattr(os, 'waitpid', wait_and_read)
    memory_copy.work_on_copy(lambda: 1, path)
    for thread in [thread for thread in threading.enumerate() if thread.name == 'mxhybrid-copy']:
        thread.join(30)
    assert os.listdir(str(tmp_path)) == []


def test_others_read_and_write_beside_it(training, tmp_path, gate):
    training.fit_and_save(str(tmp_path), 0, 2)
    training.save(str(tmp_path), 4, wait=False)
    with mxhybrid.checkpoint.open(str(tmp_path)) as tables:
        assert tables.step == 2
    with folder.locked(str(tmp_path)), files.Writer(str(tmp_path)):  # removes what no process writes
        pass
    gate.touch()
    assert mxhybrid.checkpoint.wait() == str(tmp_path / '00000002-step-4')


def test_rows_in_files_are_written_in_the_call(tmp_path, gate, monkeypatch):
    (tmp_path / 'rows').mkdir()
    monkeypatch.setenv('MXHYBRID_STORAGE', str(tmp_path / 'rows'))
    training = Training()
    training.fit_and_save(str(tmp_path / 'saved'), 0, 2, wait=False)
    assert mxhybrid.checkpoint.wait()  # no forked process waits for the gate
    assert Training().load(str(tmp_path / 'saved')).step == 2


#: Ends, or is killed, while a forked process writes a checkpoint.
SCRIPT = """
import os, sys, time
from mxhybrid.row_store.row_store import RowStore
from tests.unit.checkpoint.dynamic_training import Training
directory, is_killed = sys.argv[1], sys.argv[2] == 'killed'
training, save = Training(), RowStore.save
training.fit(0, 2)

def save_slowly(store, *arguments):
    if is_killed:
        with open(directory + '/part', 'w') as file:
            file.write(str(os.getpid()))
        os.rename(file.name, directory + '/pid')
    time.sleep(60 if is_killed else 0.3)
    return save(store, *arguments)

RowStore.save = save_slowly
training.save(directory + '/saved', 2, wait=False)
if is_killed:
    while not os.path.exists(directory + '/pid'):
        time.sleep(0.01)
    os.kill(os.getpid(), 9)
"""


def test_interpreter_waits_before_it_ends(training, tmp_path):
    run_program(SCRIPT, tmp_path, 'ended')
    assert os.listdir(str(tmp_path / 'saved')) == ['00000001-step-2']
    assert training.load(str(tmp_path / 'saved')).step == 2


def test_killed_process_leaves_no_checkpoint_and_no_process(training, tmp_path):
    assert run_program(SCRIPT, tmp_path, 'killed', check=False).returncode == -signal.SIGKILL
    pid, deadline = int((tmp_path / 'pid').read_text()), time.monotonic() + 10
    while os.path.exists('/proc/%d' % pid) and 'Z' not in open('/proc/%d/stat' % pid).read().split():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert training.load(str(tmp_path / 'saved')) is None
    training.fit_and_save(str(tmp_path / 'saved'), 0, 1)
    assert os.listdir(str(tmp_path / 'saved')) == ['00000001-step-1']
