"""Segments that are computed again in the backward pass, without a network."""
import collections
import contextlib
import threading

import mxnet as mx
import pytest

from mxhybrid.base.errors import InputError
from mxhybrid.parallel.runtime.engine_threads import CallingThread, SegmentThreads
from mxhybrid.parallel.runtime.recomputed_operator import RecomputedOperator

from ....helpers.custom_operators import register

COPY = register('mxhybrid_test_copy', True, 1, 1)


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


def test_no_two_threads_infer_shapes_of_one_operator(segment_of, failures, monkeypatch):
    """MXNet reads the shapes that a CustomOp infers from memory that the next inference of this operator frees."""
    threads, infer_shape = collections.defaultdict(set), COPY.infer_shape

    def noted(properties, shapes):
        threads[properties].add(threading.get_ident())
        return infer_shape(properties, shapes)
    monkeypatch.setattr(COPY, 'infer_shape', noted)
    operator = segment_of(mx.sym.Custom(mx.sym.var('given'), op_type='mxhybrid_test_copy'))
    given, result, gradient = mx.nd.ones((2, 3)), mx.nd.zeros((2, 3)), mx.nd.zeros((2, 3))
    outputs = mx.sym.Group(operator.symbol('segment', [mx.sym.var('given')]))
    assert outputs.infer_shape(given=(2, 3))[1] == [(2, 3)]
    operator.forward([given], ['write'], [result])
    operator.backward([given * 2], [given], ['write'], [gradient])
    assert (result.asnumpy() == 1).all() and (gradient.asnumpy() == 2).all() and not failures
    assert len(set.union(*threads.values())) == 3
    assert {len(idents) for idents in threads.values()} == {1}
