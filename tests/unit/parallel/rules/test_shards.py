"""Shards by rules: parts of rows and words, softmax along a split axis, and windows of images."""
import itertools
import json

import mxnet as mx
import numpy as np
import pytest

from mxhybrid.parallel.ops.graph import Graph
from mxhybrid.parallel.ops.registry import rule_of
from mxhybrid.parallel.rules.windows import window
from mxhybrid.parallel.sharding.split import Split
from mxhybrid.planner.profiling.local_program import local_program

from ....helpers.split_programs import program_spec

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
    names, total = [graph.operators[source].name for source, _ in operator.inputs], 0
    for place in Split((1,) * len(graph.shape(operator)), (0, 1), 2).shards(graph.shape(operator)).values():
        part = rule_of(operator).shard(graph, operator, place)
        arrays = {name: whole[tuple(slice(*held) for held in box)] if name == 'values' else indices
                  for name, box in zip(names, part.inputs)}
        attrs = {**operator.attrs, **{key: str(value) for key, value in part.attrs.items()}}
        total += part.build(list(map(mx.sym.var, names)), 'part', attrs).eval(ctx=mx.cpu(), **arrays)[0].asnumpy()
    expected = symbol.eval(ctx=mx.cpu(), values=whole, indices=indices)[0].asnumpy()
    assert total.dtype == expected.dtype == values
    np.testing.assert_array_equal(total, expected)


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
@pytest.mark.parametrize('op', ['softmax', 'log_softmax'])
def test_operators_of_a_split_axis(op, dtype):
    data = mx.sym.var('data', dtype=dtype)
    words = mx.sym.FullyConnected(data, num_hidden=8, name='words')
    graph = Graph(getattr(mx.sym, op)(words, axis=1, name='split'), {'data': (4, 3)},
                  dict.fromkeys(('data', 'words_weight', 'words_bias'), dtype))
    spec = program_spec(graph, {operator.number: Split([1, 2], [0, 1]) for operator in graph.computing}, 2)
    used = [node['op'] for node in json.loads(local_program(spec, 0).symbol.tojson())['nodes']]
    assert used.count('_NDArray') == (2 if dtype == 'float32' else 0)
    assert ('exp' in used) == (dtype == 'float64')


SIZES = list(itertools.product((1, 2, 3), (1, 2, 3), (0, 1, 2), (1, 2)))
COUNT = 13


def outputs_of(rows, kernel, stride, dilate):
    """Return the rows that each output of some padded rows reads; -1 for a row of padding."""
    reach = dilate * (kernel - 1) + 1
    return [rows[first:first + reach:dilate] for first in range(0, len(rows) - reach + 1, stride)]


@pytest.mark.parametrize('kernel, stride, pad, dilate', SIZES)
def test_a_range_gives_the_outputs_of_the_whole(kernel, stride, pad, dilate):
    def row_or_padding(row):
        return row if 0 <= row < COUNT else -1

    whole = outputs_of([row_or_padding(row) for row in range(-pad, COUNT + pad)], kernel, stride, dilate)
    for low, high in itertools.combinations(range(len(whole) + 1), 2):
        (first, end), left_pad = window((low, high), COUNT, len(whole), kernel, stride, pad, dilate)
        rows = [row_or_padding(row) for row in range(first - left_pad, end + left_pad)]
        np.testing.assert_array_equal(outputs_of(rows, kernel, stride, dilate), whole[low:high])
