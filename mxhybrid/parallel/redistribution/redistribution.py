"""An exchange: every rank gives what it holds of a tensor, and gets what is wanted there.

Forwards each target is the sum, or the union, of what sources have in common with it.  The gradient goes the same ways
back: each source gets the sum of what targets have in common with it.  Halos, allgather, alltoall, reduce-scatter and
partial sums are all that.
"""
from typing import Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from ..sharding.box import Box, shape_of, size_of, slices_in
from ..sharding.layout import Layout, bytes_between, messages, owners

#: Where a piece is in a rank's array.
Slices = Tuple[slice, ...]


class Transfer(NamedTuple):
    """One direction of an exchange, as a rank sees it."""

    #: The same on all ranks, and of no other move, before or behind.
    tag: int
    #: What goes to, and comes from, which rank; several pieces between two ranks go in this order.
    sends: List[Tuple[int, Slices]]
    receives: List[Tuple[int, Slices]]
    #: What it gives to itself: from where, and to where.
    own: List[Tuple[Slices, Slices]]
    #: Whether pieces are added up, in order of their ranks; else each element comes once, and the others are `fill`.
    adds: bool
    fill: float

    def bytes_sent(self, itemsize: int) -> int:
        """What goes to other ranks."""
        return sum(int(np.prod(shape_at(where))) for _, where in self.sends) * itemsize


class Redistribution:
    """An exchange as a rank sees it.

    Parameters
    ----------
    number : int
        The same on all ranks, and of no other exchange of the job.
    rank : int
    have : Layout
    wanted : dict of int to Box
    dtype : numpy.dtype
    fill : float
        What stands beyond the tensor.
    one_gradient : bool
        Whether of ranks that get the same box one alone gives its gradient back.
    label : str
        Of what.
    operator : int
        The number of the operator that it is made for, in the network's graph.
    differentiable : bool
        Whether gradients go back.
    """

    def __init__(self, number: int, rank: int, have: Layout, wanted: Dict[int, Box], dtype: np.dtype, fill: float = 0.0,
                 one_gradient: bool = False, label: str = '', differentiable: bool = True, operator: int = -1):
        self.number, self.label, self.dtype = number, label, np.dtype(dtype)
        self.operator = operator
        self.source: Optional[Box] = have.boxes.get(rank)
        self.target: Optional[Box] = wanted.get(rank)
        there = messages(have, wanted)
        speakers = set(owners(wanted).values())
        back = [one for one in there if differentiable and (not one_gradient or one.target in speakers)]
        #: Bytes between all ranks, there and back.
        self.bytes = bytes_between(there, self.dtype.itemsize), bytes_between(back, self.dtype.itemsize)
        self.forward = self.backward = Transfer(0, [], [], [], False, 0.0)
        to_source = [(one.source, one.target, one.box) for one in there]
        to_target = [(one.target, one.source, one.box) for one in back]
        self.forward = _transfer(2 * number, rank, to_source, self.source, self.target, have.partial, fill)
        self.backward = _transfer(2 * number + 1, rank, to_target, self.target, self.source, True, 0.0)

    @property
    def takes_part(self) -> bool:
        """Whether this rank gives or gets anything."""
        return self.source is not None or self.target is not None

    @property
    def shapes(self) -> Tuple[Optional[Tuple[int, ...]], Optional[Tuple[int, ...]]]:
        """Of what this rank gives, and of what it gets."""
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
        fill = float('nan')  # nothing is left to be filled
    return Transfer(tag, sends, receives, own, adds, fill)


def shape_at(slices: Slices) -> Tuple[int, ...]:
    """Shape of a piece."""
    return tuple(one.stop - one.start for one in slices)
