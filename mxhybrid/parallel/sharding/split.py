"""Splits of operators over ranks: degrees, and the ranks that compute the shards."""
import math
from typing import Any, Dict, List, NamedTuple, Sequence

from .box import Box, split_shape


class OutputShard(NamedTuple):
    """The shard of an operator's first output that a rank computes: a box, and which of its partial sums."""

    #: The ranges of the output.
    box: Box
    #: The position of the partial sum that the rank computes.
    partial_index: int = 0
    #: The number of partial sums; 1 if the rank computes the values themselves.
    partials: int = 1


class Split:
    """The way in which an operator is split.

    - `degrees`: the number of ranges of each dimension of the first output.
    - `ranks`: the ranks that compute the shards: copies vary fastest, then partial sums, then the last dimension.
    - `partials`: the number of ranges of the dimension that the operator sums over; outputs are partial sums if it is
      above 1.
    - `copies`: the number of ranks that compute the same shard.
    """

    def __init__(self, degrees: Sequence[int], ranks: Sequence[int], partials: int = 1, copies: int = 1):
        self.degrees, self.ranks = tuple(map(int, degrees)), tuple(map(int, ranks))
        self.partials, self.copies = int(partials), int(copies)
        shard_count = math.prod((*self.degrees, self.partials, self.copies))
        assert shard_count == len(self.ranks) == len(set(self.ranks)), (degrees, ranks, partials, copies)
        #: Splits are equal if their keys are.
        self.key = self.degrees, self.ranks, self.partials, self.copies
        self._hash = hash(self.key)

    def shards(self, shape: Sequence[int], grains: Sequence[int] = ()) -> Dict[int, OutputShard]:
        """Return the shard of each rank that has one."""
        boxes = split_shape(shape, self.degrees, grains)
        shards: List[OutputShard] = [OutputShard(box, partial_index, self.partials) for box in boxes
                                     for partial_index in range(self.partials) for _ in range(self.copies)]
        return dict(zip(self.ranks, shards))

    def as_json(self) -> Dict[str, Any]:
        return {'degrees': list(self.degrees), 'partials': self.partials, 'copies': self.copies,
                'ranks': list(self.ranks)}

    def __eq__(self, other: object) -> bool:
        return self is other or isinstance(other, Split) and self.key == other.key

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return 'Split(%r, %r, %r, %r)' % self.key


def whole_on(dimensions: int, ranks: Sequence[int]) -> Split:
    """Return the split that computes the whole operator on each of some ranks."""
    return Split((1,) * dimensions, ranks, copies=len(ranks))
