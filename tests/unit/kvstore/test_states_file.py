"""State files: written whole or not at all; state arrays brought to the shape that tables take."""
import os
import signal
import subprocess
import sys
import tempfile
import types

import mxnet as mx
import numpy as np
import pytest

from mxhybrid.base import files
from mxhybrid.kvstore import states_file as states
from mxhybrid.native.arrays import make_row_sparse
from mxhybrid.native.optimizer_state import state_arrays, state_shapes

pytestmark = pytest.mark.both_pythons


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / 'trainer.states'
    for data in (b'first', b'second, longer', b''):
        files.write_atomically(str(path), data)
        assert path.read_bytes() == data
    assert [entry.name for entry in tmp_path.iterdir()] == ['trainer.states']


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / 'trainer.states'
    path.write_bytes(b'old')
    with pytest.raises(TypeError):
        files.write_atomically(str(path), 'text is not bytes')
    assert path.read_bytes() == b'old'
    assert [entry.name for entry in tmp_path.iterdir()] == ['trainer.states']


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / 'trainer.states'
    path.write_bytes(b'old')

    def full(_):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(files.os, 'fsync', full)
    with pytest.raises(OSError, match='No space left'):
        files.write_atomically(str(path), b'new')
    assert path.read_bytes() == b'old'
    assert [entry.name for entry in tmp_path.iterdir()] == ['trainer.states']


def test_a_process_killed_while_writing_leaves_no_part(tmp_path):
    program = ('import os, signal, sys\nfrom mxhybrid.base import files\n'
               'files.os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n'
               'files.write_atomically(sys.argv[1], b"new")\n')
    path = tmp_path / 'trainer.states'
    path.write_bytes(b'old')
    assert subprocess.run([sys.executable, '-c', program, str(path)], timeout=60).returncode == -signal.SIGKILL
    assert path.read_bytes() == b'old'
    assert [entry.name for entry in tmp_path.iterdir()] == ['trainer.states']


def test_a_file_system_without_nameless_files_will_do(tmp_path, monkeypatch):
    monkeypatch.setattr(files, '_nameless', lambda directory: None)
    test_a_file_is_written_and_replaced(tmp_path)


@pytest.mark.parametrize('nameless', [True, False])
@pytest.mark.parametrize('exists', [True, False])
@pytest.mark.parametrize('relative', [True, False])
def test_a_link_stays_and_its_target_is_written(tmp_path, monkeypatch, relative, exists, nameless):
    if not nameless:
        monkeypatch.setattr(files, '_nameless', lambda directory: None)
    folder, store = tmp_path / 'run', tmp_path / 'store'
    folder.mkdir()
    store.mkdir()
    if exists:
        (store / 'trainer.states').write_bytes(b'old')
    (store / 'latest').symlink_to('trainer.states')
    link = folder / 'link'
    link.symlink_to('../store/latest' if relative else store / 'latest')
    monkeypatch.chdir(folder)
    files.write_atomically('link' if relative else str(link), b'new')
    assert link.is_symlink() and (store / 'latest').is_symlink() and not (store / 'trainer.states').is_symlink()
    assert (store / 'trainer.states').read_bytes() == link.read_bytes() == b'new'
    assert [entry.name for entry in folder.iterdir()] == ['link']
    assert sorted(entry.name for entry in store.iterdir()) == ['latest', 'trainer.states']


def test_a_link_to_another_file_system_is_written_there(tmp_path):
    with tempfile.TemporaryDirectory(dir='/dev/shm') as other:
        assert os.stat(other).st_dev != os.stat(str(tmp_path)).st_dev
        target = os.path.join(other, 'trainer.states')
        (tmp_path / 'link').symlink_to(target)
        files.write_atomically(str(tmp_path / 'link'), b'new')
        assert (tmp_path / 'link').is_symlink()
        assert os.listdir(other) == ['trainer.states']
        with open(target, 'rb') as handle:
            assert handle.read() == b'new'


def test_links_that_lead_nowhere_are_an_error_and_stay(tmp_path):
    (tmp_path / 'a').symlink_to('b')
    (tmp_path / 'b').symlink_to('a')
    (tmp_path / 'dangling').symlink_to(tmp_path / 'missing' / 'trainer.states')
    with pytest.raises(OSError, match='Too many levels of symbolic links'):
        files.write_atomically(str(tmp_path / 'a'), b'new')
    with pytest.raises(FileNotFoundError, match='missing'):
        files.write_atomically(str(tmp_path / 'dangling'), b'new')
    assert sorted((entry.name, entry.is_symlink()) for entry in tmp_path.iterdir()) == [
        ('a', True), ('b', True), ('dangling', True)]


def test_pipes_and_devices_are_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / 'pipe'
    os.mkfifo(str(pipe))
    (tmp_path / 'link').symlink_to(pipe)
    reader = os.open(str(pipe), os.O_RDONLY | os.O_NONBLOCK)
    try:
        for path in (pipe, tmp_path / 'link'):
            files.write_atomically(str(path), b'new')
            assert os.read(reader, 10) == b'new'
    finally:
        os.close(reader)
    assert pipe.is_fifo() and (tmp_path / 'link').is_symlink() and len(list(tmp_path.iterdir())) == 2


def test_a_target_that_cannot_be_replaced_leaves_no_part(tmp_path):
    (tmp_path / 'directory').mkdir()
    with pytest.raises(OSError):
        files.write_atomically(str(tmp_path / 'directory'), b'new')
    with pytest.raises(FileNotFoundError):
        files.write_atomically(str(tmp_path / 'missing' / 'trainer.states'), b'new')
    assert [entry.name for entry in tmp_path.iterdir()] == ['directory']


class Relay:
    """The collective of a worker: rank 0 keeps the values that it broadcasts, and the other ranks get them in the same
    order.
    """

    def __init__(self, rank, sent):
        self.rank, self._sent = rank, sent

    def allgather(self, values, name, dtype):
        """Rank 0's values count."""
        if self.rank == 0:
            self._sent.append(values)
        return [self._sent[0] if self.rank == 0 else self._sent.pop(0)]

    def broadcast_(self, array, name, priority=0):
        """Overwrite an array with rank 0's."""
        if self.rank == 0:
            self._sent.append(array.asnumpy())
        else:
            array[:] = mx.nd.array(self._sent.pop(0), dtype=array.dtype)


@pytest.mark.parametrize('length', [0, 1, 9, 10, 11, 20, 37])
def test_bytes_are_broadcast_in_chunks(length, monkeypatch):
    monkeypatch.setattr(states, 'BROADCAST_CHUNK_BYTES', 10)
    data, sent = bytes(range(100, 100 + length)), []
    assert states.broadcast_bytes(data, Relay(0, sent), 'states') == data
    assert all(len(chunk) <= 10 for chunk in sent[1:])
    assert states.broadcast_bytes(b'', Relay(1, sent), 'states') == data
    assert not sent


def route(rows=5, width=3, key=0, dtype='float32'):
    """The attributes of a table's route that the module reads."""
    shape, dtype = (rows, width), np.dtype(dtype)
    return types.SimpleNamespace(key=key, name='w%d' % key, shape=shape, rows=rows, dtype=dtype, sparse=True,
                                 state_shapes=lambda optimizer: state_shapes(optimizer, key, shape, dtype))


@pytest.mark.parametrize('name, arguments, slots', [('sgd', {}, 0), ('sgd', {'momentum': 0.9}, 1), ('adam', {}, 2)])
def test_the_template_is_the_state_that_one_process_keeps(name, arguments, slots):
    optimizer = mx.optimizer.create(name, **arguments)
    weight = make_row_sparse(np.arange(5), np.ones((5, 3), 'float32'), (5, 3))
    arrays = state_arrays(states._template(route(), optimizer))
    wanted = state_arrays(optimizer.create_state_multi_precision(0, weight))
    assert len(arrays) == len(wanted) == slots
    assert [(a.shape, a.stype, a.dtype) for a in arrays] == [(a.shape, a.stype, a.dtype) for a in wanted]
    assert not any(array.asnumpy().any() for array in arrays)


def test_state_of_another_model_or_optimizer_is_described():
    adam = mx.optimizer.create('adam')
    fitting, narrow = (mx.nd.zeros((5, 3)),) * 2, (mx.nd.zeros((5, 2)),) * 2
    assert states._misfit({0: fitting}, [route()], adam) == ''
    assert states._misfit({}, [route()], adam) == ''
    assert states._misfit({0: narrow}, [route()], adam) == (
        'the state of w0 has shapes [(5, 2), (5, 2)], not [(5, 3), (5, 3)]')
    assert 'the state of w1' in states._misfit({0: fitting, 1: fitting[0]}, [route(), route(key=1)], adam)
