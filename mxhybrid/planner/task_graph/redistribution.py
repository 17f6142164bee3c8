"""The redistribution of a tensor: the boxes that ranks hold, the boxes that they need, and the transfers between them.

The transfers are those of :func:`mxhybrid.parallel.sharding.layout.messages`, for many ranks at once.
"""
import itertools
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ...parallel.sharding.box import Box
from ..simulator.task_block import array_address
from .memo import Memo

_IDS = itertools.count()


class RankBoxes:
    """A box of a tensor for each of some ranks.

    - `ranks` (numpy.ndarray of int32): in ascending order.
    - `boxes`: numpy.ndarray of int64, shape (ranks, dimensions, 2)
    - `id`: a number that no other object ever has.
    """

    __slots__ = ('ranks', 'boxes', 'id', '_addresses', '_by_rank')

    def __init__(self, ranks: np.ndarray, boxes: np.ndarray):
        self.ranks, self.boxes, self.id = ranks, boxes, next(_IDS)
        self._addresses: Tuple[int, ...] = ()
        self._by_rank: Dict[int, Box] = {}

    @property
    def addresses(self) -> Tuple[int, ...]:
        """The arrays, their length and the number of dimensions, as compiled code takes them."""
        if not self._addresses:
            self._addresses = (array_address(self.ranks), array_address(self.boxes), len(self.ranks),
                               self.boxes.shape[1])
        return self._addresses

    @classmethod
    def from_boxes(cls, boxes: Dict[int, Box]) -> 'RankBoxes':
        """Return the arrays of boxes by rank."""
        ranks = sorted(boxes)
        return cls(np.array(ranks, np.int32), box_array([boxes[rank] for rank in ranks]))

    @property
    def by_rank(self) -> Dict[int, Box]:
        """The boxes by rank."""
        if not self._by_rank:
            self._by_rank = {rank: tuple(map(tuple, box))
                             for rank, box in zip(self.ranks.tolist(), self.boxes.tolist())}
        return self._by_rank

    def sizes(self) -> np.ndarray:
        """Return the number of elements of each box."""
        return (self.boxes[:, :, 1] - self.boxes[:, :, 0]).prod(axis=1)


def interned_boxes(memo: Memo, ranks: np.ndarray, boxes: np.ndarray) -> RankBoxes:
    """Return boxes of ranks; equal ones are one object, as long as a cache knows them."""
    return memo.once(('boxes', ranks.tobytes(), boxes.shape, boxes.tobytes()), RankBoxes, ranks, boxes)


def boxes_by_rank(memo: Memo, boxes: Dict[int, Box]) -> RankBoxes:
    """Return boxes of ranks as :func:`interned_boxes` does."""
    rank_boxes = RankBoxes.from_boxes(boxes)
    return interned_boxes(memo, rank_boxes.ranks, rank_boxes.boxes)


def box_array(boxes: Sequence[Box]) -> np.ndarray:
    """Return boxes as an array of shape (boxes, dimensions, 2)."""
    dimensions, flatten = len(boxes[0]) if boxes else 0, itertools.chain.from_iterable
    # Faster than np.array, which has to find out how they are nested.
    numbers = np.fromiter(flatten(flatten(boxes)), np.int64, 2 * dimensions * len(boxes))
    return numbers.reshape(len(boxes), dimensions, 2)


class Transfers:
    """Elements that move from one rank to another, in arrays of equal length.

    - `sources`, `targets` (numpy.ndarray of int32): ranks; a source is never its target.
    - `elements`: numpy.ndarray of int64
    - `addresses`: the arrays and their length, as compiled code takes them.
    """

    def __init__(self, sources: np.ndarray, targets: np.ndarray, elements: np.ndarray):
        self.sources, self.targets = (np.ascontiguousarray(ranks, np.int32) for ranks in (sources, targets))
        self.elements = np.ascontiguousarray(elements, np.int64)
        self.addresses = (array_address(self.sources), array_address(self.targets), array_address(self.elements),
                          len(self.sources))

    def __len__(self) -> int:
        return len(self.sources)


class Redistribution(NamedTuple):
    """The transfers from the ranks that hold a tensor to those that need it."""

    held: RankBoxes
    needed: RankBoxes
    #: All transfers; with `gathered`, the transfers of the first step, to the ranks that sum pieces.
    transfers: Transfers
    #: The ranks that send gradients back; empty if no gradient flows.
    gradient_ranks: np.ndarray
    #: Equal for redistributions that move the same data.
    key: Tuple[Any, ...] = ()
    #: The pieces of a sum in two steps (:mod:`mxhybrid.parallel.sharding.sum_steps`).
    pieces: Optional[RankBoxes] = None
    #: The transfers of its second step.
    gathered: Optional[Transfers] = None
    #: By rank: the seconds of its core to convert the array that it holds, and the array that it needs.
    conversions: Optional[Tuple[np.ndarray, np.ndarray]] = None
