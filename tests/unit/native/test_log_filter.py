"""The filter of log lines that MXNet repeats: about copies of sparse arrays, and about lazy updates."""
import os
import subprocess
import sys
import threading

import pytest
from lab.launchers import PYTHON_PATH
from mxnet import nd

from mxhybrid.native import log_filter

pytestmark = pytest.mark.both_pythons

LAZY = 'lazy_update = True'

# Provokes the log lines of MXNet in a new process; the arguments are varied by the test.
SCRIPT = '''
import sys
from mxnet import nd
from mxhybrid.native import log_filter

log_filter.suppress_repeated_logs()
rows = nd.ones((2, 2)).tostype('row_sparse')
nd.reverse(rows, axis=1)
nd.ones((2, 2)).copyto(rows)
nd.waitall()
'''


def errors_of(script, **variables):
    """Return the standard error of a script, in a process that imports MXNet quickly."""
    env = {name: value for name, value in os.environ.items() if name != log_filter.VARIABLE}
    return subprocess.run([sys.executable, '-c', script], env=dict(env, PYTHONPATH=PYTHON_PATH, **variables),
                          timeout=60, stderr=subprocess.PIPE, universal_newlines=True, check=True).stderr


def update():
    """Update touched rows lazily."""
    rows = nd.ones((2, 2)).tostype('row_sparse')
    nd.sgd_mom_update(rows, rows, rows.copy(), out=rows, lr=0.1, momentum=0.9)


def in_a_thread(*calls):
    """Make calls in a thread in which MXNet has said nothing yet."""
    def call():
        for one in calls:
            one()

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_lazy_updates_are_not_remarked_on(monkeypatch, capfd):
    monkeypatch.delenv(log_filter.VARIABLE, raising=False)
    nd.waitall()  # other tests' remarks
    in_a_thread(update)
    assert LAZY in capfd.readouterr().err
    in_a_thread(log_filter.suppress_repeated_logs, update)
    assert capfd.readouterr().err == ''
    assert log_filter.VARIABLE not in os.environ


def test_the_filter_is_silent_if_mxnet_came_first():
    before = 'from mxnet import nd\nnd.reverse(nd.ones((3, 3)).tostype("row_sparse"), axis=1).wait_to_read()\n'
    errors = errors_of(before + SCRIPT.replace('nd.reverse(rows, axis=1)\nnd.ones((2, 2)).copyto(rows)', ''))
    for word in ('utils.h', 'fallback detected', 'operator = reverse', 'MXNET_STORAGE_FALLBACK'):
        assert errors.count(word) == 1, errors


def test_lines_about_copies_appear_in_no_other_thread():
    errors = errors_of('''
import threading
from mxnet import nd
from mxhybrid.native import log_filter

nd.ones((2, 2)).copyto(nd.ones((2, 2)).tostype('row_sparse'))
nd.waitall()
thread = threading.Thread(target=log_filter.suppress_repeated_logs)
thread.start()
thread.join()
nd.waitall()
''')
    assert errors.count('Copy from default storage') == 1, errors


def test_users_who_ask_for_the_lines_see_them(monkeypatch, capfd):
    monkeypatch.setenv(log_filter.VARIABLE, '1')
    in_a_thread(log_filter.suppress_repeated_logs, update)
    assert LAZY in capfd.readouterr().err
    assert os.environ[log_filter.VARIABLE] == '1'


@pytest.mark.parametrize('variables, message_count', [({}, 0), ({log_filter.VARIABLE: '0'}, 0),
                                                      ({log_filter.VARIABLE: '1'}, 2)])
def test_work_on_copies(variables, message_count):
    errors = errors_of(SCRIPT, **variables)
    assert errors.count('fallback detected') == message_count, errors
    assert message_count or errors == ''


def test_lines_that_other_threads_write_meanwhile_are_kept(capfd):
    with log_filter._without_lines(b'secret'):
        os.write(2, b'one\na secret\n')
        os.write(2, b'two\n')
    os.write(2, b'three\n')
    assert capfd.readouterr().err == 'one\ntwo\nthree\n'


def test_without_a_place_for_a_file_everything_is_heard(monkeypatch, capfd):
    def full(*_):
        raise OSError('no space left')

    monkeypatch.delenv(log_filter.VARIABLE, raising=False)
    monkeypatch.setattr(log_filter.tempfile, 'TemporaryFile', full)
    descriptors = set(os.listdir('/proc/self/fd'))
    in_a_thread(log_filter.suppress_repeated_logs, update)
    assert LAZY in capfd.readouterr().err
    # The garbage of other tests may close some of them at any time.
    assert not set(os.listdir('/proc/self/fd')) - descriptors


def test_a_reader_that_has_gone_ends_no_process():
    program = ("import os\nfrom mxhybrid.native import log_filter\n"
               "with log_filter._without_lines(b'x'):\n    os.write(2, b'one\\n')\n")
    done = subprocess.Popen([sys.executable, '-c', program], stderr=subprocess.PIPE)
    done.stderr.close()
    assert done.wait(60) == 0
