"""Casts of MXNet's automatic mixed precision are operators of a network like others."""
import mxnet as mx
import numpy as np

from mxhybrid.parallel.ops.graph import Graph


def graph_of(symbol):
    return Graph(symbol, {'data': (4, 3)}, {'data': 'float32'})


def test_casts_are_operators_with_types_of_their_own():
    data = mx.sym.var('data')
    half = mx.sym.amp_cast(data, dtype='float16', name='half')
    both = mx.sym.amp_multicast(mx.sym.relu(half, name='relu'), data, num_outputs=2, name='both')
    graph = graph_of(mx.sym.elemwise_add(both[0], both[1], name='sum'))
    assert [one.op for one in graph.computing] == ['amp_cast', 'relu', 'amp_multicast', 'elemwise_add']
    types = {graph.label(one): graph.dtypes[one.number, 0] for one in graph.computing}
    assert types == {'half': np.float16, 'relu': np.float16, 'both': np.float32, 'sum': np.float32}


def test_networks_with_and_without_casts_are_different_ones():
    data = mx.sym.var('data')
    cast = mx.sym.amp_cast(data, dtype='float16', name='cast')
    assert graph_of(mx.sym.relu(cast, name='relu')).digest() != graph_of(mx.sym.relu(data, name='relu')).digest()
