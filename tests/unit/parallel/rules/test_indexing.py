"""Parts of rows and of words add up to the whole, whatever type the indices have."""
import mxnet as mx
import numpy as np
import pytest

from mxhybrid.parallel.ops.graph import Graph
from mxhybrid.parallel.ops.registry import rule_of
from mxhybrid.parallel.sharding.split import Split

ROWS, INDICES = 200, [[3, 0], [99, 100], [127, 120]]


def embedding(values, indices):
    return mx.sym.Embedding(indices, values, input_dim=ROWS, output_dim=4, name='lookup')


def pick(values, indices):
    return mx.sym.pick(values, indices, axis=-1, name='lookup')


@pytest.mark.parametrize('kind', ['uint8', 'int8', 'int32', 'int64', 'float16', 'float32', 'float64'])
@pytest.mark.parametrize('values', ['float32', 'float64'])
@pytest.mark.parametrize('make, shape', [(embedding, (ROWS, 4)), (pick, (3, 2, ROWS))])
def test_partial_sums_make_the_whole(make, shape, values, kind):
    symbol = make(mx.sym.var('values'), mx.sym.var('indices'))
    graph = Graph(symbol, {'values': shape, 'indices': (3, 2)}, {'values': values, 'indices': kind})
    operator = graph.computing[0]
    whole = mx.nd.array(np.random.RandomState(1).normal(size=shape), dtype=values, ctx=mx.cpu())
    indices = mx.nd.array(INDICES, dtype=kind, ctx=mx.cpu())
    total = 0
    for place in Split((1,) * len(graph.shape(operator)), (0, 1), 2).shards(graph.shape(operator)).values():
        part = rule_of(operator).shard(graph, operator, place)
        arrays = {name: whole[tuple(slice(*held) for held in box)] if name == 'values' else indices
                  for name, box in zip((graph.operators[source].name for source, _ in operator.inputs), part.inputs)}
        attrs = {**operator.attrs, **{key: str(value) for key, value in part.attrs.items()}}
        made = part.build([mx.sym.var(graph.operators[source].name) for source, _ in operator.inputs], 'part', attrs)
        total += made.eval(ctx=mx.cpu(), **arrays)[0].asnumpy()
    expected = symbol.eval(ctx=mx.cpu(), values=whole, indices=indices)[0].asnumpy()
    assert total.dtype == expected.dtype == values
    np.testing.assert_array_equal(total, expected)
