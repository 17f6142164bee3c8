"""Segments that are computed again in the backward pass, without a network."""
import mxnet as mx
import pytest

from mxhybrid.base.errors import InputError
from mxhybrid.parallel.runtime.engine_threads import SegmentThreads
from mxhybrid.parallel.runtime.recomputed_operator import RecomputedOperator


@pytest.fixture
def failures():
    return []


@pytest.fixture
def segment(failures):
    """A segment that squares its input."""
    threads = SegmentThreads()
    symbol = mx.sym.square(mx.sym.var('given'))
    operator = RecomputedOperator(['given'], ['given'], symbol, symbol, [0], threads, failures.append)
    yield operator
    operator.forget()
    threads.close()


def test_gradients_are_those_of_the_segment(segment, failures):
    given, result, gradient = mx.nd.array([3.0]), mx.nd.zeros(1), mx.nd.zeros(1)
    segment.forward([given], ['write'], [result])
    segment.backward([mx.nd.array([2.0])], [given], ['write'], [gradient])
    assert (result.asscalar(), gradient.asscalar()) == (9, 12)
    assert failures == []


def test_a_call_after_the_end_of_the_threads_ends_the_job(segment, failures):
    segment._threads.close()
    arrays = [mx.nd.ones(1)]
    with pytest.raises(InputError, match='its thread mxhybrid-segment'):
        segment.forward(arrays, ['write'], [mx.nd.zeros(1)])
    with pytest.raises(InputError, match='its thread mxhybrid-again'):
        segment.backward(arrays, arrays, ['write'], [mx.nd.zeros(1)])
    assert [type(error) for error in failures] == [InputError] * 2
