"""How an operator is split over ranks: its degrees, and which ranks have its parts."""
from typing import Dict, List, NamedTuple, Sequence

from .box import Box, split_shape


class OutputShard(NamedTuple):
    """The part of an operator that a rank has: a box of its first output, and which of so many addends of that."""

    box: Box
    addend: int = 0
    addends: int = 1


class Split:
    """Of one operator.

    Attributes
    ----------
    degrees : tuple of int
        Ranges in which each dimension of the first output is cut.
    ranks : tuple of int
        Who has the parts: the last dimension is fastest, then addends, then copies.
    addends : int
        Into how many ranges the inputs are cut over which the operator sums, so that outputs are addends.
    copies : int
        Ranks that compute the same part.
    """

    def __init__(self, degrees: Sequence[int], ranks: Sequence[int], addends: int = 1, copies: int = 1):
        self.degrees, self.ranks = tuple(int(one) for one in degrees), tuple(int(one) for one in ranks)
        self.addends, self.copies = int(addends), int(copies)
        count = self.addends * self.copies
        for degree in self.degrees:
            count *= degree
        assert count == len(self.ranks) == len(set(self.ranks)), (degrees, ranks, addends, copies)
        #: What makes two of them equal.
        self.key = self.degrees, self.ranks, self.addends, self.copies
        self._hash = hash(self.key)

    def shards(self, shape: Sequence[int], grains: Sequence[int] = ()) -> Dict[int, OutputShard]:
        """The part of each rank that has one."""
        every: List[OutputShard] = [OutputShard(box, addend, self.addends) for box in split_shape(shape, self.degrees,
                                                                                              grains)
                              for addend in range(self.addends) for _ in range(self.copies)]
        return dict(zip(self.ranks, every))

    def __eq__(self, other: object) -> bool:
        return self is other or isinstance(other, Split) and self.key == other.key

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return 'Split(%r, %r, %r, %r)' % self.key


def whole_on(dimensions: int, ranks: Sequence[int]) -> Split:
    """The whole operator on each of some ranks."""
    return Split((1,) * dimensions, ranks, copies=len(ranks))
