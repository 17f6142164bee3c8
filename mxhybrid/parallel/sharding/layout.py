"""Layouts of tensors over ranks, and the messages between two layouts."""
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from .box import Box, Range, full, groups_of, overlap, size_of, subtract


class Layout:
    """The box of a tensor that each rank holds; several ranks may hold the same box, and some none.

    - `shape`: the shape of the whole tensor.
    - `boxes`: the boxes by rank.
    - `partial`: whether ranks hold partial sums, which add up to the tensor.
    """

    def __init__(self, shape: Tuple[int, ...], boxes: Dict[int, Box], partial: bool = False):
        self.shape, self.boxes, self.partial = tuple(shape), dict(boxes), partial

    def gives(self, needed: Dict[int, Box]) -> bool:
        """Return whether every rank has the box that it needs, so that nothing moves."""
        return not self.partial and all(self.boxes.get(rank) == box for rank, box in needed.items())


class Message(NamedTuple):
    """A box that moves from one rank to another, or to itself, in the coordinates of the whole tensor."""

    source: int
    target: int
    box: Box


def messages(layout: Layout, needed: Dict[int, Box]) -> List[Message]:
    """Return the messages that give every rank its box of `needed`; the list is the same on all ranks.

    Every rank with a partial sum sends it.  An element that several ranks hold comes from the target itself if it can,
    else from a rank that sends to few others.
    """
    moves = []
    inside = full(layout.shape)
    targets_of = dict.fromkeys(layout.boxes, 0)
    for target, box in sorted(needed.items()):
        rest: List[Box] = [common for common in [overlap(box, inside)] if common is not None]
        if layout.partial:
            for source, source_box in sorted(layout.boxes.items()):
                moves += [Message(source, target, common) for box_left in rest
                           for common in [overlap(box_left, source_box)] if common is not None]
            continue
        for source in sorted(layout.boxes, key=lambda rank: (rank != target, targets_of[rank], rank)):
            if not rest:
                break
            still_missing = []
            for box_left in rest:
                common = overlap(box_left, layout.boxes[source])
                if common is None:
                    still_missing.append(box_left)
                    continue
                moves.append(Message(source, target, common))
                targets_of[source] += source != target
                still_missing += subtract(box_left, common)
            rest = still_missing
        assert not rest, 'no rank holds %s of %s' % (rest, layout.shape)
    return moves


def bytes_between(sent: List[Message], itemsize: int) -> int:
    """Return the bytes that go from one rank to another one."""
    return sum(size_of(message.box) for message in sent if message.source != message.target) * itemsize


def owners(boxes: Dict[int, Box]) -> Dict[Box, int]:
    """Return the owner of each box, the first of the ranks that hold it."""
    owner_of: Dict[Box, int] = {}
    for rank, box in sorted(boxes.items()):
        owner_of.setdefault(box, rank)
    return owner_of


def exchange_of_parts(boxes: Dict[int, Box], axes: Tuple[int, ...], shape_for: Callable[[int], Tuple[int, ...]],
                      box_for: Callable[[int, Range], Box]) -> Tuple[Layout, Dict[int, Box]]:
    """Return the layout of values that each rank computes of its part of a tensor, and the boxes by which each rank has
    the values of all parts of its group, the ranks whose boxes differ in `axes` only.

    - `shape_for`: the shape of the values, given the largest number of parts of a group.
    - `box_for`: the box of the values of some parts of a rank's group.
    """
    groups = groups_of(boxes, axes)
    parts = {rank: group.index(boxes[rank]) for rank, group in groups.items()}
    layout = Layout(shape_for(max(map(len, groups.values()))),
                    {rank: box_for(rank, (part, part + 1)) for rank, part in parts.items()})
    return layout, {rank: box_for(rank, (0, len(group))) for rank, group in groups.items()}


class Movement(NamedTuple):
    """The movement of a tensor between layouts, the same on all ranks."""

    layout: Layout
    #: The box that each rank needs.
    needed: Dict[int, Box]
    dtype: Any
    #: The value beyond the tensor.
    fill: float = 0.0
    #: Whether only one of the ranks that receive the same box sends its gradient back.
    one_gradient: bool = False
    #: Whether gradients go back.
    differentiable: bool = True
