"""Redistribution of a tensor: every rank sends boxes of its shard, and receives the box that it needs.

In the forward pass, a target is the union, or with partial sums the sum, of its intersections with the sources.  In the
backward pass, the gradient of a source is the sum of its intersections with the gradients of the targets.  Halo
exchange, allgather, alltoall, reduce-scatter and allreduce are all redistributions.
"""
from typing import List, NamedTuple, Optional, Tuple

import numpy as np

from ..sharding.box import Box, shape_of, size_of, slices_in
from ..sharding.layout import Movement, bytes_between, messages, owners

#: The position of a piece in a rank's array.
Slices = Tuple[slice, ...]


class Transfer(NamedTuple):
    """A redistribution in one direction, as a rank sees it."""

    #: The same on all ranks, and unlike the tag of any other transfer.
    tag: int
    #: The pieces for each rank, and from each rank; several pieces between two ranks go in this order.
    sends: List[Tuple[int, Slices]]
    receives: List[Tuple[int, Slices]]
    #: The pieces that stay on the rank: their positions in source and target.
    local: List[Tuple[Slices, Slices]]
    #: Whether pieces are added up, in the order of their ranks; otherwise each element comes once, and all others are
    #: `fill`.
    adds: bool
    fill: float

    def bytes_sent(self, itemsize: int) -> int:
        """Return the bytes that go to other ranks."""
        return sum(int(np.prod(shape_at(where))) for _, where in self.sends) * itemsize


class Redistribution:
    """A redistribution as a rank sees it.

    - `number`: the same on all ranks, and unlike that of any other redistribution of the job.
    - `label`: name of what is redistributed.
    - `operator`: the number, in the network's graph, of the operator that it belongs to.
    """

    def __init__(self, number: int, rank: int, movement: Movement, label: str = '', operator: int = -1):
        layout, needed, dtype, fill, one_gradient, differentiable = movement
        self.number, self.label, self.dtype = number, label, np.dtype(dtype)
        self.differentiable, self.operator = differentiable, operator
        self.source: Optional[Box] = layout.boxes.get(rank)
        self.target: Optional[Box] = needed.get(rank)
        forward_messages = messages(layout, needed)
        owner_ranks = set(owners(needed).values())
        backward_messages = [message for message in forward_messages
                             if differentiable and (not one_gradient or message.target in owner_ranks)]
        #: Bytes between all ranks, in the forward and the backward pass.
        self.bytes = (bytes_between(forward_messages, self.dtype.itemsize),
                      bytes_between(backward_messages, self.dtype.itemsize))
        to_source = [(message.source, message.target, message.box) for message in forward_messages]
        to_target = [(message.target, message.source, message.box) for message in backward_messages]
        self.forward = _transfer(2 * number, rank, to_source, self.source, self.target, layout.partial, fill)
        self.backward = _transfer(2 * number + 1, rank, to_target, self.target, self.source, True, 0.0)

    @property
    def takes_part(self) -> bool:
        """True if this rank sends or receives anything."""
        return self.source is not None or self.target is not None

    @property
    def shapes(self) -> Tuple[Optional[Tuple[int, ...]], Optional[Tuple[int, ...]]]:
        """The shapes of the arrays that this rank sends and receives."""
        return (None if self.source is None else shape_of(self.source),
                None if self.target is None else shape_of(self.target))


def _transfer(tag: int, rank: int, pieces: List[Tuple[int, int, Box]], source: Optional[Box], target: Optional[Box],
              adds: bool, fill: float) -> Transfer:
    sends = [(to, slices_in(box, source)) for giver, to, box in pieces
             if giver == rank and to != rank and source is not None]
    receives = [(giver, slices_in(box, target)) for giver, to, box in pieces
                if to == rank and giver != rank and target is not None]
    own = [(slices_in(box, source), slices_in(box, target)) for giver, to, box in pieces
           if giver == to == rank and source is not None and target is not None]
    if not adds and target is not None and sum(size_of(box) for _, to, box in pieces if to == rank) == size_of(target):
        fill = float('nan')  # no element is left to be filled
    return Transfer(tag, sends, receives, own, adds, fill)


def shape_at(slices: Slices) -> Tuple[int, ...]:
    """Return the shape of a piece."""
    return tuple(side.stop - side.start for side in slices)
