"""Boxes: ranges of a tensor in every dimension, and what is done with them.

A box is a tuple of pairs ``(low, high)``, one per dimension, `high` not included.  It may reach beyond the tensor,
where an operator reads padding.
"""
import itertools
from typing import Iterable, List, Optional, Sequence, Tuple

Range = Tuple[int, int]
Box = Tuple[Range, ...]


def full(shape: Iterable[int]) -> Box:
    """The box of all elements of a tensor."""
    return tuple((0, int(count)) for count in shape)


def shape_of(box: Box) -> Tuple[int, ...]:
    """Extents of a box."""
    return tuple([high - low for low, high in box])


def size_of(box: Box) -> int:
    """Elements of a box."""
    size = 1
    for low, high in box:
        size *= high - low
    return size


def overlap(one: Box, other: Box) -> Optional[Box]:
    """What two boxes have in common; None if that is nothing."""
    common = tuple((max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(one, other))
    return common if all(low < high for low, high in common) else None


def bounding_box(boxes: Iterable[Box]) -> Box:
    """The smallest box that has all of them in it."""
    return tuple((min(low for low, _ in ranges), max(high for _, high in ranges)) for ranges in zip(*boxes))


def subtract(box: Box, hole: Box) -> List[Box]:
    """A box less one within it, in disjoint boxes."""
    rest, box_left = [], list(box)
    for place, ((low, high), (start, end)) in enumerate(zip(box, hole)):
        for piece in ((low, start), (end, high)):
            if piece[0] < piece[1]:
                rest.append(tuple(box_left[:place] + [piece] + box_left[place + 1:]))
        box_left[place] = (start, end)
    return rest


def slices_in(box: Box, outer: Box) -> Tuple[slice, ...]:
    """Where a box is in an array of the elements of another."""
    return tuple(slice(low - start, high - start) for (low, high), (start, _) in zip(box, outer))


def split_range(count: int, degree: int, grain: int = 1) -> List[Range]:
    """`degree` neighbouring ranges of `count` elements, cut at multiples of `grain` only, as even as that allows."""
    units = count // grain
    ends = [units * part // degree * grain for part in range(degree)] + [count]
    return list(zip(ends, ends[1:]))


def split_shape(shape: Sequence[int], degrees: Sequence[int], grains: Sequence[int] = ()) -> List[Box]:
    """A tensor cut in every dimension into so many ranges, the last dimension fastest."""
    all_cuts = [split_range(count, degree, grain)
                for count, degree, grain in zip(shape, degrees, grains or [1] * len(shape))]
    return list(itertools.product(*all_cuts))
