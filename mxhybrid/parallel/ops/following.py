"""Splits that follow: the split with which each rank computes an operator from its shard of one input."""
import itertools
from typing import Dict, Iterator, List, Optional, Tuple

from ..sharding.box import Box, contains
from ..sharding.split import OutputShard, Split
from .graph import Graph, Operator
from .registry import rule_of

#: The largest number of dimensions and ranks for which all assignments of degrees are compared.
_MAX_SPLIT_DIMENSIONS, _MAX_RANKS = 3, 64


def followed_split(graph: Graph, operator: Operator, position: int, producer: Split) -> Optional[Split]:
    """Return the split of an operator of which no shard reads more of an input than its rank has computed; None if
    there is none.

    Dimensions may move or change their shape between input and output, as in a transpose or a reshape: the split is
    found by comparing the boxes that shards read with those that ranks have.

    `producer` is the split of the operator that computes the input at `position`.
    """
    source, output = operator.inputs[position]
    degrees = [degree for degree in producer.degrees if degree > 1]
    if producer.partials > 1 or producer.copies > 1 or len(degrees) > _MAX_SPLIT_DIMENSIONS or \
            len(producer.ranks) > _MAX_RANKS:
        return None
    computed = _computed_boxes(graph, graph.operators[source], output, producer)
    rule = rule_of(operator)
    limits = list(rule.limits(graph, operator)) + [rule.partials(graph, operator)]
    for candidate in _assignments(degrees, limits):
        ranks = _ranks_for(graph, operator, position, candidate, computed)
        if ranks is not None:
            return Split(candidate[:-1], ranks, candidate[-1])
    return None


def _computed_boxes(graph: Graph, source: Operator, output: int, split: Split) -> Dict[int, Box]:
    """Return the box of an output that each rank computes."""
    rule = rule_of(source)
    shards = split.shards(graph.shape(source), rule.grains(graph, source))
    return {rank: rule.shard(graph, source, shard).outputs[output] for rank, shard in shards.items()}


def _assignments(degrees: List[int], limits: List[int]) -> Iterator[Tuple[int, ...]]:
    """Yield the ways to give each degree to a dimension, or to the partial sums, within limits."""
    for dimensions in itertools.product(range(len(limits)), repeat=len(degrees)):
        assigned = [1] * len(limits)
        for dimension, degree in zip(dimensions, degrees):
            assigned[dimension] *= degree
        if all(degree <= limit for degree, limit in zip(assigned, limits)):
            yield tuple(assigned)


def _ranks_for(graph: Graph, operator: Operator, position: int, degrees: Tuple[int, ...], computed: Dict[int, Box]
               ) -> Optional[List[int]]:
    """Return the ranks of the shards of a split, in order, so that each rank has all that its shard reads; None if some
    shard reads more than any rank has.
    """
    rule = rule_of(operator)
    numbered = Split(degrees[:-1], range(len(computed)), degrees[-1])
    free, ranks = dict(computed), []
    shards: Dict[int, OutputShard] = numbered.shards(graph.shape(operator), rule.grains(graph, operator))
    for number in range(len(computed)):
        box = rule.shard(graph, operator, shards[number]).inputs[position]
        rank = None if box is None else next((rank for rank, held in free.items() if contains(held, box)), None)
        if rank is None:
            return None
        del free[rank]
        ranks.append(rank)
    return ranks
