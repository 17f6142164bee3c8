"""Layouts of tensors over ranks, and what moves between two of them."""
from typing import Dict, List, NamedTuple, Optional, Tuple

from .box import Box, full, overlap, size_of, subtract


class Layout:
    """Which box of a tensor each rank holds; ranks may hold the same, and some none.

    Attributes
    ----------
    shape : tuple of int
        Of the whole tensor.
    boxes : dict of int to Box
        By rank.
    partial : bool
        Whether what ranks hold are addends, whose sum is the tensor.
    """

    def __init__(self, shape: Tuple[int, ...], boxes: Dict[int, Box], partial: bool = False):
        self.shape, self.boxes, self.partial = tuple(shape), dict(boxes), partial

    def gives(self, wanted: Dict[int, Box]) -> bool:
        """Whether every rank has what is wanted there, so that nothing moves."""
        return not self.partial and all(self.boxes.get(rank) == box for rank, box in wanted.items())


class Message(NamedTuple):
    """A box that moves from one rank to another, or to itself, in the coordinates of the whole tensor."""

    source: int
    target: int
    box: Box


def messages(have: Layout, wanted: Dict[int, Box]) -> List[Message]:
    """What has to move so that every rank has what is `wanted` there; the same list on all ranks.

    Addends go from all who have one.  Whatever else several ranks hold, a rank takes from itself if it can, and else
    from one that few others ask.
    """
    found = []
    inside = full(have.shape)
    asked = dict.fromkeys(have.boxes, 0)
    for target, box in sorted(wanted.items()):
        rest: List[Box] = [common for common in [overlap(box, inside)] if common is not None]
        if have.partial:
            for source, theirs in sorted(have.boxes.items()):
                found += [Message(source, target, common) for one in rest for common in [overlap(one, theirs)]
                          if common is not None]
            continue
        for source in sorted(have.boxes, key=lambda rank: (rank != target, asked[rank], rank)):
            left = []
            for one in rest:
                common = overlap(one, have.boxes[source])
                if common is None:
                    left.append(one)
                    continue
                found.append(Message(source, target, common))
                asked[source] += source != target
                left += subtract(one, common)
            rest = left
        assert not rest, 'nobody holds %s of %s' % (rest, have.shape)
    return found


def bytes_between(moved: List[Message], itemsize: int) -> int:
    """Bytes that go from one rank to another one."""
    return sum(size_of(one.box) for one in moved if one.source != one.target) * itemsize


def owners(boxes: Dict[int, Box]) -> Dict[Box, int]:
    """The rank that speaks for those which hold the same box."""
    found: Dict[Box, int] = {}
    for rank, box in sorted(boxes.items()):
        found.setdefault(box, rank)
    return found


def group_of(rank: int, boxes: Dict[int, Box]) -> Optional[List[int]]:
    """The ranks that hold the same box as one of them; None if that holds none."""
    return sorted(other for other, box in boxes.items() if box == boxes[rank]) if rank in boxes else None
