"""Operators on arrays of many dimensions, compiled graphs, and the state of recording."""
import functools
import subprocess
import sys
import threading

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxhybrid.native.compiled_graph import CompiledGraph, release_discarded
from mxhybrid.native.symbols import joined_along, part_of, wants_gradient
from mxhybrid.native.trainers import is_fresh, set_fresh

#: oneDNN has types of its own, of which it refuses some views of arrays of more than six dimensions.
CASES = [(count, dtype) for count in range(1, 9) for dtype in (
    'float32', 'float64', 'float16', 'int32', 'int64', 'uint8') if count <= 6 or dtype not in ('float32', 'uint8')]


def values_of(shape, dtype):
    return np.arange(1, np.prod(shape) + 1).reshape(shape).astype(dtype)


def outputs_and_gradients(build, arrays):
    """Return the output of a graph, and the gradients of its inputs if that of the output is the output."""
    names = ['input%d' % at for at in range(len(arrays))]
    graph = mx.nd.CachedOp(build(*map(mx.sym.var, names)), [('static_alloc', True), ('static_shape', True)])
    inputs = [mx.nd.array(array, dtype=array.dtype) for array in arrays]
    for array in inputs:
        array.attach_grad()
    with mx.autograd.record():
        output = graph(*inputs)
    output.backward(output)
    return output.asnumpy(), [array.grad.asnumpy() for array in inputs]


@pytest.mark.parametrize('count, dtype', CASES)
def test_parts_of_arrays_and_their_gradients(count, dtype):
    shape = (3, 2, 1, 2, 3, 2, 1, 2)[:count]
    whole = values_of(shape, dtype)
    for part in ([slice(0, side) for side in shape], [slice(0, 1)] * count,
                 [slice(side - 1, side) if at % 2 == 0 else slice(0, side) for at, side in enumerate(shape)],
                 [slice(0, side) if at < count - 1 else slice(1, side) for at, side in enumerate(shape)]):
        part = tuple(side if side.stop > side.start else slice(0, 1) for side in part)
        output, (gradient,) = outputs_and_gradients(lambda x, part=part: part_of(x, shape, part), [whole])
        expected = np.zeros_like(whole)
        expected[part] = whole[part]
        np.testing.assert_array_equal(output, whole[part])
        np.testing.assert_array_equal(gradient, expected)


def joined(axis, shapes, *symbols):
    return joined_along(mx.sym, axis, symbols, shapes)


@pytest.mark.parametrize('count, dtype', CASES)
def test_arrays_are_joined_along_each_axis(count, dtype):
    for axis in range(count):
        shapes = [tuple(length if at == axis else 2 for at in range(count)) for length in (1, 3, 2)]
        arrays = [values_of(shape, dtype) for shape in shapes]
        output, gradients = outputs_and_gradients(functools.partial(joined, axis, shapes), arrays)
        np.testing.assert_array_equal(output, np.concatenate(arrays, axis))
        for gradient, array in zip(gradients, arrays):
            np.testing.assert_array_equal(gradient, array)
        now = joined_along(mx.nd, axis, [mx.nd.array(array, dtype=array.dtype) for array in arrays], shapes)
        np.testing.assert_array_equal(now.asnumpy(), output)


FLAGS = [('static_alloc', True), ('static_shape', True), ('data_indices', [0]), ('param_indices', [])]


def graph_of(*factors):
    """Return a graph that multiplies its input by each factor."""
    given = mx.sym.var('given')
    return CompiledGraph(mx.sym.Group([given * factor for factor in factors]), FLAGS)


def test_outputs_are_a_list():
    assert [[array.asscalar() for array in graph_of(*factors)(mx.nd.ones(1))]
            for factors in ((2,), (2, 3))] == [[2], [2, 3]]


#: Prints the functions of MXNet that free symbols and graphs after the functions that are registered with atexit.
FREES_LATE = """
import atexit
import mxnet as mx
from mxhybrid.native.compiled_graph import CompiledGraph

class Spy:
    def __init__(self, library):
        self.library = library

    def __getattr__(self, name):
        print(name)
        return getattr(self.library, name)

symbol = mx.sym.var('given') * 2
kept = [CompiledGraph(symbol, []), mx.nd.CachedOp(symbol, []), symbol]
atexit._run_exitfuncs()
del symbol
for module in (mx._ctypes.symbol, mx._ctypes.ndarray):
    module._LIB = Spy(module._LIB)
kept.clear()
"""


def test_nothing_of_graphs_is_freed_once_the_interpreter_ends():
    """Custom operators call functions of Python when they are freed."""
    done = subprocess.run([sys.executable, '-c', FREES_LATE], stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == ''


@pytest.mark.parametrize('release', [lambda: graph_of(3)(mx.nd.ones(1)), release_discarded],
                         ids=['the next call', 'release_discarded'])
def test_a_graph_that_another_thread_discards_is_released_later(monkeypatch, release):
    released_in = []

    class Watched(mx.nd.CachedOp):
        """A compiled graph that records its release."""

        def __del__(self):
            released_in.append(threading.current_thread())
            super().__del__()

    monkeypatch.setattr(mx.nd, 'CachedOp', Watched)
    graphs = [graph_of(2)]
    discarding = threading.Thread(target=graphs.clear)
    discarding.start()
    discarding.join()
    assert released_in == []
    release()
    assert released_in == [threading.main_thread()]


@pytest.mark.both_pythons
def test_arrays_that_want_a_gradient():
    data, weight = mx.nd.ones(3), mx.nd.ones(3)
    weight.attach_grad()
    with autograd.record():
        product, double = data * weight, data * 2
    wanted = [wants_gradient(one) for one in (data, weight, product, double, product.detach(), mx.nd.ones(2))]
    assert wanted == [False, True, True, False, False, False]


@pytest.mark.both_pythons
def test_backward_passes_are_noticed():
    weight = mx.nd.ones(3)
    weight.attach_grad()
    set_fresh(weight, False)
    with autograd.record():
        product = 2 * weight
    assert not is_fresh(weight)
    product.backward()
    assert is_fresh(weight)
    set_fresh(weight, False)
    assert not is_fresh(weight)
