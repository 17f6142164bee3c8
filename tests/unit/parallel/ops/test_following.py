"""Splits that follow transposes, reshapes, slices and sums: no rank reads elements of another rank."""
import mxnet as mx
import numpy as np
import pytest

from mxhybrid.parallel.ops.following import followed_split
from mxhybrid.parallel.ops.registry import rule_of
from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.sharding.split import Split, whole_on


class Lambda(mx.gluon.HybridBlock):
    """An operator after another one."""

    def __init__(self, function):
        super().__init__()
        self._function = function

    def hybrid_forward(self, F, data):
        return self._function(F, F.relu(data))


def followed(function, shape, producer):
    """Return the split that follows, after a check that each rank has all elements that it reads."""
    graph = traced(Lambda(function), shape).graph
    source, operator = graph.computing
    split = followed_split(graph, operator, 0, producer)
    if split is not None:
        held, rule = producer.shards(graph.shape(source)), rule_of(operator)
        for rank, output_shard in split.shards(graph.shape(operator), rule.grains(graph, operator)).items():
            read = rule.shard(graph, operator, output_shard).inputs[0]
            assert all(low <= read_low and read_high <= high
                       for (low, high), (read_low, read_high) in zip(held[rank].box, read))
    return split


def test_a_transpose_keeps_samples_with_their_ranks():
    def transpose(F, data):
        return F.transpose(data, axes=(1, 0, 2))
    assert followed(transpose, (8, 6, 4), Split((4, 1, 1), (3, 1, 2, 0))) == Split((1, 4, 1), (3, 1, 2, 0))
    # The dimensions change their order, and the ranks with them.
    assert followed(transpose, (8, 6, 4), Split((2, 2, 1), range(4))) == Split((2, 2, 1), (0, 2, 1, 3))


def test_a_reshape_keeps_the_first_of_joined_dimensions():
    assert followed(lambda F, data: F.reshape(data, shape=(-3, 0)), (8, 6, 4), Split((4, 1, 1), range(4))) == \
        Split((4, 1), range(4))
    assert followed(lambda F, data: F.reshape(data, shape=(0, 2, -1)), (8, 6), Split((4, 1), range(4))) == \
        Split((4, 1, 1), range(4))
    assert followed(lambda F, data: F.expand_dims(data, axis=0), (8, 6), Split((4, 1), range(4))) == \
        Split((1, 4, 1), range(4))


def test_a_whole_operator_is_followed_on_its_rank():
    assert followed(lambda F, data: F.reshape(data, shape=(-3,)), (8, 6), whole_on(2, [2])) == whole_on(1, [2])
    assert followed(lambda F, data: F.sum(data, axis=1), (8, 6), Split((4, 1), (4, 5, 6, 7))) == \
        Split((4,), (4, 5, 6, 7))


@pytest.mark.parametrize('producer', [Split((1, 1), range(4), partials=4), whole_on(2, range(4))])
def test_partial_sums_and_copies_are_not_followed(producer):
    assert followed(lambda F, data: F.transpose(data), (8, 6), producer) is None


def test_a_shard_that_needs_more_does_not_follow():
    assert followed(lambda F, data: F.max(data, axis=1), (8, 6), Split((1, 2), range(2))) is None
    assert followed(lambda F, data: F.slice_axis(data, axis=0, begin=1, end=3), (8, 6), Split((4, 1), range(4))) is None


def test_products_are_split_as_their_first_factor():
    class Product(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, left, right):
            return F.batch_dot(F.relu(left), F.relu(right))
    graph = traced(Product(), [(8, 6, 4), (8, 4, 5)]).graph
    product = graph.computing[-1]
    assert followed_split(graph, product, 0, Split((4, 1, 1), range(4))) == Split((4, 1, 1), range(4))
    assert followed_split(graph, product, 0, Split((1, 2, 1), range(2))) == Split((1, 2, 1), range(2))
    # Columns of the first factor are summed over: each rank has partial sums.
    assert followed_split(graph, product, 0, Split((1, 1, 2), range(2))) == Split((1, 1, 1), range(2), 2)
    assert np.prod(followed_split(graph, product, 1, Split((1, 1, 5), range(5))).degrees) == 5
