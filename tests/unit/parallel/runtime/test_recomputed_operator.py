"""Segments that are computed again in the backward pass, without a network."""
import contextlib
import threading

import mxnet as mx
import pytest

from mxhybrid.base.errors import InputError
from mxhybrid.parallel.runtime.engine_threads import CallingThread, SegmentThreads
from mxhybrid.parallel.runtime.recomputed_operator import RecomputedOperator


@pytest.fixture
def failures():
    return []


@pytest.fixture
def segment_of(failures):
    """A function that makes a segment of a symbol."""
    with contextlib.ExitStack() as stack:
        def make(symbol):
            threads = SegmentThreads(CallingThread('mxhybrid-segment'), CallingThread('mxhybrid-again'))
            operator = RecomputedOperator(['given'], ['given'], symbol, symbol, [0], threads, failures.append)
            for release in (*(thread.close for thread in threads), operator.drop):
                stack.callback(release)
            return operator
        yield make


def test_gradients_are_those_of_the_segment(segment_of, failures):
    segment = segment_of(mx.sym.square(mx.sym.var('given')))
    given, result, gradient = mx.nd.array([3.0]), mx.nd.zeros(1), mx.nd.zeros(1)
    segment.forward([given], ['write'], [result])
    segment.backward([mx.nd.array([2.0])], [given], ['write'], [gradient])
    assert (result.asscalar(), gradient.asscalar()) == (9, 12)
    assert failures == []


def test_a_call_after_the_threads_ends_the_job(segment_of, failures):
    segment = segment_of(mx.sym.square(mx.sym.var('given')))
    for thread in segment._threads:
        thread.close()
    arrays = [mx.nd.ones(1)]
    with pytest.raises(InputError, match='its thread mxhybrid-segment'):
        segment.forward(arrays, ['write'], [mx.nd.zeros(1)])
    with pytest.raises(InputError, match='its thread mxhybrid-again'):
        segment.backward(arrays, arrays, ['write'], [mx.nd.zeros(1)])
    assert [type(error) for error in failures] == [InputError] * 2


class _Copy(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0])


#: The threads that have inferred shapes of each operator of _CopyProperties.
_inferring_threads = {}


@mx.operator.register('mxhybrid_test_copy')
class _CopyProperties(mx.operator.CustomOpProp):
    def infer_shape(self, in_shape):
        _inferring_threads.setdefault(self, set()).add(threading.get_ident())
        return in_shape, [in_shape[0]], []

    def create_operator(self, ctx, shapes, dtypes):
        return _Copy()


def test_no_two_threads_infer_shapes_of_one_operator(segment_of, failures):
    """MXNet reads the shapes that a CustomOp infers from memory that the next inference of this operator frees."""
    _inferring_threads.clear()
    operator = segment_of(mx.sym.Custom(mx.sym.var('given'), op_type='mxhybrid_test_copy'))
    given, result, gradient = mx.nd.ones((2, 3)), mx.nd.zeros((2, 3)), mx.nd.zeros((2, 3))
    outputs = mx.sym.Group(operator.symbol('segment', [mx.sym.var('given')]))
    assert outputs.infer_shape(given=(2, 3))[1] == [(2, 3)]
    operator.forward([given], ['write'], [result])
    operator.backward([given * 2], [given], ['write'], [gradient])
    assert (result.asnumpy() == 1).all() and (gradient.asnumpy() == 2).all() and not failures
    assert len(set.union(*_inferring_threads.values())) == 3
    assert {len(idents) for idents in _inferring_threads.values()} == {1}
