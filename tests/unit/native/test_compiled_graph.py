"""Graphs that MXNet compiles: their results, and the thread that releases them."""
import threading

import mxnet as mx
import pytest

from mxhybrid.native.compiled_graph import CompiledGraph, release_discarded

FLAGS = [('static_alloc', True), ('static_shape', True), ('data_indices', [0]), ('param_indices', [])]


def graph_of(*factors):
    """Return a graph that multiplies its input by each factor."""
    given = mx.sym.var('given')
    return CompiledGraph(mx.sym.Group([given * factor for factor in factors]), FLAGS)


def test_outputs_are_a_list():
    assert [[array.asscalar() for array in graph_of(*factors)(mx.nd.ones(1))]
            for factors in ((2,), (2, 3))] == [[2], [2, 3]]


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
