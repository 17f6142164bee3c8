"""The bytes that a redistribution moves between ranks, for many ranks at once.

They are those of :func:`mxhybrid.parallel.sharding.layout.messages`.
"""
import itertools
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple, Union

import numpy as np

from ...parallel.sharding.box import Box
from ..simulator.task_block import array_address

_NUMBERS = itertools.count()


class RankBoxes:
    """Which box each rank has, or wants.

    Attributes
    ----------
    ranks : numpy.ndarray of int32
        In order.
    boxes : numpy.ndarray of int64, shape (ranks, dimensions, 2)
    number : int
        Of this object, and of no other one that ever was.
    """

    __slots__ = ('ranks', 'boxes', 'number', 'address', 'native', '_by_rank')

    def __init__(self, ranks: np.ndarray, boxes: np.ndarray):
        self.ranks, self.boxes, self.number = ranks, boxes, next(_NUMBERS)
        #: Of the ranks, as compiled code takes it.
        self.address = array_address(ranks)
        #: What :mod:`~.native_transfer_tasks` has made of it.
        self.native: Any = None
        self._by_rank: Dict[int, Box] = {}

    @classmethod
    def of(cls, boxes: Dict[int, Box]) -> 'RankBoxes':
        """Of boxes by rank."""
        ranks = sorted(boxes)
        return cls(np.array(ranks, np.int32), as_array([boxes[rank] for rank in ranks]))

    @property
    def by_rank(self) -> Dict[int, Box]:
        """The boxes by rank."""
        if not self._by_rank:
            self._by_rank = {rank: tuple(map(tuple, box))
                             for rank, box in zip(self.ranks.tolist(), self.boxes.tolist())}
        return self._by_rank

    def sizes(self) -> np.ndarray:
        """Elements of each box."""
        return (self.boxes[:, :, 1] - self.boxes[:, :, 0]).prod(axis=1)


def as_array(boxes: Sequence[Box]) -> np.ndarray:
    """Of shape (boxes, dimensions, 2)."""
    dimensions, flat = len(boxes[0]) if boxes else 0, itertools.chain.from_iterable
    # Sooner than NumPy finds out how they are nested.
    return np.fromiter(flat(flat(boxes)), np.int64, 2 * dimensions * len(boxes)).reshape(len(boxes), dimensions, 2)


class Transfers:
    """Elements that go from rank to rank, in arrays of equal length.

    Attributes
    ----------
    sources, targets : numpy.ndarray of int32
        Ranks; never the same.
    elements : numpy.ndarray of int64
    """

    def __init__(self, sources: np.ndarray, targets: np.ndarray, elements: np.ndarray):
        self.sources, self.targets = np.asarray(sources, np.int32), np.asarray(targets, np.int32)
        self.elements = np.asarray(elements, np.int64)
        self._addresses: Tuple[int, ...] = ()

    @property
    def addresses(self) -> Tuple[int, ...]:
        """As compiled code takes them, and how many."""
        if not self._addresses:
            self._addresses = (array_address(self.sources), array_address(self.targets), array_address(self.elements),
                               len(self.sources))
        return self._addresses

    def reversed(self, targets: Union[Sequence[int], np.ndarray]) -> 'Transfers':
        """What goes back as gradients, from those of the targets that answer."""
        answers = np.isin(self.targets, np.asarray(targets, int))
        return Transfers(self.targets[answers], self.sources[answers], self.elements[answers])

    def __len__(self) -> int:
        return len(self.sources)


class Redistribution(NamedTuple):
    """An exchange between an operator and some of those who read it."""

    have: RankBoxes
    wanted: RankBoxes
    moved: Transfers
    #: Who gives gradients back, of int32; none where none flow.
    answers: np.ndarray
    #: Tells apart what moves.
    key: Tuple[Any, ...] = ()


def moved(have: RankBoxes, partial: bool, wanted: RankBoxes) -> Transfers:
    """What has to move so that every rank has what is `wanted` there.

    Addends, where what ranks have is `partial`, come from all who have one; of several ranks that hold the same box
    each target asks one, in turn.
    """
    sources, targets = have.ranks, wanted.ranks
    if not len(sources) or not len(targets):
        return Transfers(*(np.zeros(0, int),) * 3)
    if partial:
        return _without_own(np.repeat(sources, len(targets)), np.tile(targets, len(sources)),
                            _volumes(have.boxes, wanted.boxes).reshape(-1))
    holders: Dict[Box, List[int]] = {}
    for rank, box in have.by_rank.items():
        holders.setdefault(box, []).append(rank)
    groups = list(holders.values())
    volumes = _volumes(as_array(list(holders)), wanted.boxes)
    at_group, at_target = np.nonzero(volumes)
    if len(groups) == len(sources):
        firsts = np.array([group[0] for group in groups])
        return _without_own(firsts[at_group], targets[at_target], volumes[at_group, at_target])
    found: List[Tuple[int, int, int]] = []
    asked: Dict[int, int] = dict.fromkeys(have.by_rank, 0)
    # As `messages` does it: target by target, from the one that few others ask.
    for target_at, group_at in sorted(zip(at_target.tolist(), at_group.tolist())):
        target = int(targets[target_at])
        group = groups[group_at]
        if target in group:
            continue
        source = min(group, key=lambda rank: (asked[rank], rank))
        asked[source] += 1
        found.append((source, target, int(volumes[group_at, target_at])))
    both = np.array(found, int).reshape(-1, 3)
    return Transfers(both[:, 0], both[:, 1], both[:, 2])


def has(have: RankBoxes, wanted: RankBoxes) -> int:
    """2 if every rank has just what it wants, 1 if it has that and more, else 0."""
    held = have.by_rank
    if any(rank not in held for rank in wanted.by_rank):
        return 0
    if all(held[rank] == box for rank, box in wanted.by_rank.items()):
        return 2
    return int(all(low >= start and high <= end for rank, box in wanted.by_rank.items()
                   for (low, high), (start, end) in zip(box, held[rank])))


def _volumes(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Elements that boxes have in common, one row a box of the first."""
    found = np.ones((len(boxes), len(others)), int)
    for at in range(boxes.shape[1]):  # dimension by dimension, so that memory stays that of the result
        found *= np.maximum(np.minimum(boxes[:, None, at, 1], others[None, :, at, 1])
                            - np.maximum(boxes[:, None, at, 0], others[None, :, at, 0]), 0)
    return found


def _without_own(sources: np.ndarray, targets: np.ndarray, elements: np.ndarray) -> Transfers:
    keep = (sources != targets) & (elements > 0)
    return Transfers(sources[keep], targets[keep], elements[keep])
