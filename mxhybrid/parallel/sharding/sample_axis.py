"""The dimension along which a tensor has the samples of the joint batch."""
import math
from typing import List, NamedTuple, Optional, Sequence

from .box import Range


class SampleAxis(NamedTuple):
    """The dimension that has the samples: of N samples, coordinate c along it belongs to sample ``c // each % N``.

    ``reshape`` of (samples, times, features) to (samples x times, features) makes `each` the number of times;
    ``concat`` of two inputs along their samples makes `rounds` 2.
    """

    axis: int
    #: Neighbouring coordinates that belong to one sample.
    each: int = 1
    #: The number of times that all samples follow each other.
    rounds: int = 1

    def ranges(self, samples: int, low: int, high: int) -> List[Range]:
        """Return the coordinates of some of N samples, a range for each round."""
        return [((at * samples + low) * self.each, (at * samples + high) * self.each) for at in range(self.rounds)]


def after_reshape(known: Optional[SampleAxis], before: Sequence[int], after: Sequence[int]) -> Optional[SampleAxis]:
    """Return the sample axis after a change of shape; None if no dimension has whole samples any more."""
    if known is None:
        return None
    samples = before[known.axis] // (known.each * known.rounds)
    inner = known.each * math.prod(before[known.axis + 1:])
    for axis, count in enumerate(after):
        size = math.prod(after[axis + 1:])
        if size and inner % size == 0 and (size * count) % (inner * samples) == 0:
            return SampleAxis(axis, inner // size, size * count // (inner * samples))
    return None


def after_slice(known: Optional[SampleAxis], axis: int, count: int, low: int, high: int) -> Optional[SampleAxis]:
    """Return the sample axis once a dimension of `count` coordinates is cut to a range; None if it lacks samples."""
    if known is None or known.axis != axis:
        return known
    whole = count // known.rounds
    if low % whole or high % whole or high <= low:
        return None
    return known._replace(rounds=(high - low) // whole)
