"""Pieces of parts that are too large to be timed here: a part takes as many times as long as it has more to do."""
from typing import NamedTuple, Optional

from ...parallel.ops.graph import Graph, Operator
from ...parallel.ops.registry import rule_of
from ...parallel.ops.rule import with_range
from ...parallel.sharding.split import PartPlace
from .roofline import Work, work_of

#: What half of a piece reads and writes at most, of what all of it does: half of the channels are made of all that is
#: read.
_HALVED = 0.75


class ScaledShard(NamedTuple):
    """What stands for a part: which box, and what it computes and moves."""

    place: PartPlace
    work: Work


def scaled_shard(graph: Graph, one: Operator, place: PartPlace, most_bytes: float) -> Optional[ScaledShard]:
    """The part itself, or what is left of it when it is halved, by its samples or the first other dimension that makes
    it smaller, until it reads and writes no more than so many bytes; None where that cannot be.
    """
    found: Optional[ScaledShard] = _piece(graph, one, place)
    while found is not None and found.work.bytes > most_bytes:
        found = _half(graph, one, found)
    return found


def _half(graph: Graph, one: Operator, whole: ScaledShard) -> Optional[ScaledShard]:
    rule = rule_of(one)
    for dimension, (can, grain) in enumerate(zip(rule.splittable(graph, one), rule.grains(graph, one))):
        low, high = whole.place.box[dimension]
        middle = low + (high - low) // 2 // grain * grain
        if can and middle > low:
            found = _piece(graph, one, whole.place._replace(
                box=with_range(whole.place.box, dimension, (low, middle))))
            if found.work.bytes <= _HALVED * whole.work.bytes:
                return found
    return None


def _piece(graph: Graph, one: Operator, place: PartPlace) -> ScaledShard:
    return ScaledShard(place, work_of(graph, one, rule_of(one).part(graph, one, place)))
