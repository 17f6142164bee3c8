"""Splits that follow transposes, reshapes, slices and sums: no rank reads elements of another rank."""
import numpy as np
import pytest
from mxnet.gluon import nn

from mxhybrid.parallel.ops.following import followed_split
from mxhybrid.parallel.ops.registry import rule_of
from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.sharding.split import Split, whole_on


def followed(function, shape, producer):
    """Return the split that follows, after a check that each rank has all elements that it reads."""
    graph = traced(nn.HybridLambda(lambda F, data: function(F, F.relu(data))), shape).graph
    source, operator = graph.computing
    split = followed_split(graph, operator, 0, producer)
    if split is not None:
        held, rule = producer.shards(graph.shape(source)), rule_of(operator)
        for rank, output_shard in split.shards(graph.shape(operator), rule.grains(graph, operator)).items():
            read = rule.shard(graph, operator, output_shard).inputs[0]
            assert all(low <= read_low and read_high <= high
                       for (low, high), (read_low, read_high) in zip(held[rank].box, read))
    return split


FOUR = range(4)
PARTIAL_SUMS, COPIES = Split((1, 1), FOUR, partials=4), whole_on(2, FOUR)
#: Functions, the shape and the split of their data, and the split that follows; None where none does.
CASES = {
    'a transpose keeps samples with their ranks': (
        lambda F, x: F.transpose(x, axes=(1, 0, 2)), (8, 6, 4), Split((4, 1, 1), (3, 1, 2, 0)),
        Split((1, 4, 1), (3, 1, 2, 0))),
    'ranks change their order with the dimensions': (
        lambda F, x: F.transpose(x, axes=(1, 0, 2)), (8, 6, 4), Split((2, 2, 1), FOUR), Split((2, 2, 1), (0, 2, 1, 3))),
    'the first of joined dimensions stays': (
        lambda F, x: F.reshape(x, shape=(-3, 0)), (8, 6, 4), Split((4, 1, 1), FOUR), Split((4, 1), FOUR)),
    'a dimension is taken apart': (
        lambda F, x: F.reshape(x, shape=(0, 2, -1)), (8, 6), Split((4, 1), FOUR), Split((4, 1, 1), FOUR)),
    'a dimension comes first': (
        lambda F, x: F.expand_dims(x, axis=0), (8, 6), Split((4, 1), FOUR), Split((1, 4, 1), FOUR)),
    'a whole operator stays on its rank': (
        lambda F, x: F.reshape(x, shape=(-3,)), (8, 6), whole_on(2, [2]), whole_on(1, [2])),
    'other ranks': (lambda F, x: F.sum(x, axis=1), (8, 6), Split((4, 1), (4, 5, 6, 7)), Split((4,), (4, 5, 6, 7))),
    'partial sums': (lambda F, x: F.transpose(x), (8, 6), PARTIAL_SUMS, None),
    'copies': (lambda F, x: F.transpose(x), (8, 6), COPIES, None),
    'a shard of a maximum needs more': (lambda F, x: F.max(x, axis=1), (8, 6), Split((1, 2), range(2)), None),
    'a shard of a slice needs more': (
        lambda F, x: F.slice_axis(x, axis=0, begin=1, end=3), (8, 6), Split((4, 1), FOUR), None)}


@pytest.mark.parametrize('name', CASES)
def test_the_split_that_follows(name):
    *case, expected = CASES[name]
    assert followed(*case) == expected


def test_products_are_split_as_their_first_factor():
    factors = nn.HybridLambda(lambda F, left, right: F.batch_dot(F.relu(left), F.relu(right)))
    graph = traced(factors, [(8, 6, 4), (8, 4, 5)]).graph
    product = graph.computing[-1]
    assert followed_split(graph, product, 0, Split((4, 1, 1), FOUR)) == Split((4, 1, 1), FOUR)
    assert followed_split(graph, product, 0, Split((1, 2, 1), range(2))) == Split((1, 2, 1), range(2))
    # Columns of the first factor are summed over: each rank has partial sums.
    assert followed_split(graph, product, 0, Split((1, 1, 2), range(2))) == Split((1, 1, 1), range(2), 2)
    assert np.prod(followed_split(graph, product, 1, Split((1, 1, 5), range(5))).degrees) == 5
