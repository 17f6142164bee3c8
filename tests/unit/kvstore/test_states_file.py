"""State files: bytes that rank 0 broadcasts, and state arrays in the shape that tables take."""
import types

import mxnet as mx
import numpy as np
import pytest

from mxhybrid.kvstore import states_file as states
from mxhybrid.native.arrays import make_row_sparse
from mxhybrid.native.optimizer_state import state_arrays, state_shapes

pytestmark = pytest.mark.both_pythons


class Relay:
    """The collective of a worker: rank 0 keeps the values that it sends, and rank 1 takes them in the same order."""

    def __init__(self, rank, sent):
        self.rank, self._sent = rank, sent

    def allgather(self, values, name, dtype):
        """Rank 0's values count."""
        if self.rank == 0:
            self._sent.append(values)
            return [values]
        return [self._sent.pop(0)]

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


def route(key=0):
    """The attributes of a table's route that the module reads."""
    shape, dtype = (5, 3), np.dtype('float32')
    return types.SimpleNamespace(key=key, name='w%d' % key, shape=shape, rows=5, dtype=dtype, sparse=True,
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
