"""State files: written whole or not at all; state arrays brought to the shape that tables take."""
import signal
import subprocess
import sys
import types

import mxnet as mx
import numpy as np
import pytest

from mxhybrid import files, states
from mxhybrid.arrays import make_row_sparse


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / 'trainer.states'
    for data in (b'first', b'second, longer', b''):
        files.write_atomically(str(path), data)
        assert path.read_bytes() == data
    assert [entry.name for entry in tmp_path.iterdir()] == ['trainer.states']


def test_a_failed_write_leaves_the_old_file_and_no_part(tmp_path):
    path = tmp_path / 'trainer.states'
    path.write_bytes(b'old')
    with pytest.raises(TypeError):
        files.write_atomically(str(path), 'text is not bytes')
    assert path.read_bytes() == b'old'
    assert [entry.name for entry in tmp_path.iterdir()] == ['trainer.states']


def test_a_full_disk_leaves_the_old_file_and_no_part(tmp_path, monkeypatch):
    path = tmp_path / 'trainer.states'
    path.write_bytes(b'old')

    def full(_):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(files.os, 'fsync', full)
    with pytest.raises(OSError, match='No space left'):
        files.write_atomically(str(path), b'new')
    assert path.read_bytes() == b'old'
    assert [entry.name for entry in tmp_path.iterdir()] == ['trainer.states']


def test_a_process_that_is_killed_while_it_writes_leaves_no_part(tmp_path):
    program = ('import os, signal, sys\nfrom mxhybrid import files\n'
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


def test_a_target_that_cannot_be_replaced_leaves_no_part(tmp_path):
    (tmp_path / 'directory').mkdir()
    with pytest.raises(OSError):
        files.write_atomically(str(tmp_path / 'directory'), b'new')
    with pytest.raises(FileNotFoundError):
        files.write_atomically(str(tmp_path / 'missing' / 'trainer.states'), b'new')
    assert [entry.name for entry in tmp_path.iterdir()] == ['directory']


class Relay:
    """The collective of a worker: that of rank 0 keeps what it broadcasts, the others get it in turn."""

    def __init__(self, rank, sent):
        self.rank, self._sent = rank, sent

    def gather(self, values, name, dtype):
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
    """What this module reads of a table's route."""
    return types.SimpleNamespace(key=key, name='w%d' % key, shape=(rows, width), rows=rows, dtype=np.dtype(dtype))


@pytest.mark.parametrize('width', [1, 3])
def test_state_rows_are_padded_to_the_width_of_the_table(width):
    values = np.arange(1.0, 5 * width + 1, dtype='float32').reshape(5, width)
    ids = np.array([0, 2, 3])
    wanted = np.zeros((3, 3), 'float32')
    wanted[:, :width] = values[ids]
    np.testing.assert_array_equal(states.padded_rows(mx.nd.array(values), route())(ids), wanted)
    sparse = make_row_sparse(np.array([2, 4]), values[[2, 4]], (5, width))
    wanted[[0, 2]] = 0
    np.testing.assert_array_equal(states.padded_rows(sparse, route())(ids), wanted)


@pytest.mark.parametrize('name, arguments, slots', [('sgd', {}, 0), ('sgd', {'momentum': 0.9}, 1), ('adam', {}, 2)])
def test_the_template_is_the_state_that_one_process_keeps(name, arguments, slots):
    optimizer = mx.optimizer.create(name, **arguments)
    weight = make_row_sparse(np.arange(5), np.ones((5, 3), 'float32'), (5, 3))
    arrays = states.state_arrays(states._template(route(), optimizer))
    wanted = states.state_arrays(optimizer.create_state_multi_precision(0, weight))
    assert len(arrays) == len(wanted) == slots
    assert [(a.shape, a.stype, a.dtype) for a in arrays] == [(a.shape, a.stype, a.dtype) for a in wanted]
    assert not any(array.asnumpy().any() for array in arrays)


@pytest.mark.parametrize('name, arguments, widths', [
    ('nag', {'momentum': 0.9}, [3]), ('adadelta', {}, [3, 3]), ('groupadagrad', {}, [1]), ('sgd', {}, [])])
def test_widths_of_the_state_take_no_memory_for_the_rows(name, arguments, widths):
    rows = 2 ** 33  # more than MXNet has arrays for
    assert states.slot_widths(route(rows), mx.optimizer.create(name, **arguments)) == widths


def test_state_of_another_model_or_optimizer_is_described():
    adam = mx.optimizer.create('adam')
    fitting, narrow = (mx.nd.zeros((5, 3)),) * 2, (mx.nd.zeros((5, 2)),) * 2
    assert states._misfit({0: fitting}, [route()], adam) == ''
    assert states._misfit({}, [route()], adam) == ''
    assert states._misfit({0: narrow}, [route()], adam) == (
        'the state of w0 has shapes [(5, 2), (5, 2)], not [(5, 3), (5, 3)]')
    assert 'the state of w1' in states._misfit({0: fitting, 1: fitting[0]}, [route(), route(key=1)], adam)
