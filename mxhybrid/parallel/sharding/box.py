"""Boxes: ranges of a tensor in every dimension.

A box is a tuple of pairs ``(low, high)``, one for each dimension, `high` excluded.  It may reach beyond the tensor
where an operator reads padding.
"""
import itertools
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

Range = Tuple[int, int]
Box = Tuple[Range, ...]


def full(shape: Iterable[int]) -> Box:
    """Return the box of all elements of a tensor."""
    return tuple((0, int(count)) for count in shape)


def shape_of(box: Box) -> Tuple[int, ...]:
    return tuple([high - low for low, high in box])


def size_of(box: Box) -> int:
    """Return the number of elements of a box."""
    size = 1
    for low, high in box:
        size *= high - low
    return size


def overlap(box: Box, other: Box) -> Optional[Box]:
    """Return the intersection of two boxes; None if it is empty."""
    common = tuple((max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(box, other))
    return common if all(low < high for low, high in common) else None


def contains(outer: Box, inner: Box) -> bool:
    return all(start <= low and high <= end for (start, end), (low, high) in zip(outer, inner))


def bounding_box(boxes: Iterable[Box]) -> Box:
    """Return the smallest box that contains all of them."""
    return tuple((min(low for low, _ in ranges), max(high for _, high in ranges)) for ranges in zip(*boxes))


def subtract(box: Box, hole: Box) -> List[Box]:
    """Subtract a box from a box that contains it; return the rest as disjoint boxes."""
    rest, remaining = [], list(box)
    for dimension, ((low, high), (start, end)) in enumerate(zip(box, hole)):
        for side in ((low, start), (end, high)):
            if side[0] < side[1]:
                rest.append(tuple(remaining[:dimension] + [side] + remaining[dimension + 1:]))
        remaining[dimension] = (start, end)
    return rest


def slices_in(box: Box, outer: Box) -> Tuple[slice, ...]:
    """Return the position of a box in an array that holds the elements of an outer box."""
    return tuple(slice(low - start, high - start) for (low, high), (start, _) in zip(box, outer))


def split_range(count: int, degree: int, grain: int = 1) -> List[Range]:
    """Return `degree` neighbouring ranges of `count` elements, as even as multiples of `grain` allow."""
    units = count // grain
    ends = [units * part // degree * grain for part in range(degree)] + [count]
    return list(zip(ends, ends[1:]))


def split_shape(shape: Sequence[int], degrees: Sequence[int], grains: Sequence[int] = ()) -> List[Box]:
    """Return the boxes of a tensor that is split in every dimension; the last dimension varies fastest."""
    ranges = [split_range(count, degree, grain)
              for count, degree, grain in zip(shape, degrees, grains or [1] * len(shape))]
    return list(itertools.product(*ranges))


def groups_of(boxes: Dict[int, Box], axes: Tuple[int, ...]) -> Dict[int, List[Box]]:
    """Return, for each rank, the sorted boxes that differ from its own in `axes` only; copies count once."""
    def key(box: Box) -> Box:
        return tuple(side for axis, side in enumerate(box) if axis not in axes)
    groups: Dict[Box, List[Box]] = {}
    for box in sorted(set(boxes.values())):
        groups.setdefault(key(box), []).append(box)
    return {rank: groups[key(box)] for rank, box in boxes.items()}
