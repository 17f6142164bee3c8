"""Pieces of parts that are too large to be timed here: a part takes as many times as long as it has more to do."""
from typing import NamedTuple, Optional

from ..parallel.graph import Graph, Operator
from ..parallel.rule import with_range
from ..parallel.rule_table import rule_of
from ..parallel.split import PartPlace
from .roofline import Work, work_of

#: What a piece reads and writes at most, of what it is half of: half of the channels are made of all that is read.
_HALVED = 0.75


class Piece(NamedTuple):
    """What stands for a part: which box, and what it computes and moves."""

    place: PartPlace
    work: Work


def piece_of(graph: Graph, one: Operator, place: PartPlace, most_bytes: float) -> Optional[Piece]:
    """The part itself, or what is left of it when it is halved, by samples or whatever leaves least, until it reads and
    writes no more than so many bytes; None where that cannot be.
    """
    rule, found = rule_of(one), _piece(graph, one, place)
    while found.work.bytes > most_bytes:
        halves = []
        for dimension, (can, grain) in enumerate(zip(rule.splittable(graph, one), rule.grains(graph, one))):
            low, high = found.place.box[dimension]
            middle = low + (high - low) // 2 // grain * grain
            if can and middle > low:
                box = with_range(found.place.box, dimension, (low, middle))
                halves.append(_piece(graph, one, found.place._replace(box=box)))
        least = min(halves, key=lambda half: half.work.bytes, default=found)
        if least.work.bytes > _HALVED * found.work.bytes:
            return None
        found = least
    return found


def _piece(graph: Graph, one: Operator, place: PartPlace) -> Piece:
    return Piece(place, work_of(graph, one, rule_of(one).part(graph, one, place)))
