"""Sums that several ranks need: in one step, or in two, a reduce-scatter and an allgather."""
from typing import Dict, List, Optional, Tuple

from .box import Box, full, overlap, size_of, split_range
from .layout import Layout

#: A second step has to save this number of bytes on the rank that sends or receives most.  It costs another latency and
#: the work of another redistribution, 0.2 to 0.5 ms; a link of 1 Gbit/s moves about 64 kB in that time.
MIN_SAVED_BYTES = 1 << 16

#: The largest range of a dimension may exceed the even share by this fraction of it, if the dimension is not the best.
_UNEVENNESS = 1 / 16


def steps_between(layout: Layout, needed: Dict[int, Box], itemsize: int) -> List[Tuple[Layout, Dict[int, Box]]]:
    """Return the redistributions that give every rank its box of `needed`, one after the other: the layout before each,
    and the boxes that ranks get.
    """
    pieces = sum_pieces(layout, needed, itemsize)
    if pieces is None:
        return [(layout, needed)]
    return [(layout, pieces), (Layout(layout.shape, pieces), needed)]


def sum_pieces(layout: Layout, needed: Dict[int, Box], itemsize: int) -> Optional[Dict[int, Box]]:
    """Return the piece of the sum that each rank computes if the sum is made in two steps; None for one step.

    In one step, each rank of `needed` gets all partial sums of its box.  In two, the ranks that need the same box
    divide it: each gets the partial sums of its piece, adds them in the order of ranks, and sends the result to the
    others.  So all ranks have the same bits.  With n ranks, each sends 2 (n - 1) / n of the box in the place of n - 1
    boxes.
    """
    if not layout.partial:
        return None
    inside = full(layout.shape)
    ranks_of: Dict[Box, List[int]] = {}
    for rank, box in sorted(needed.items()):
        common = overlap(box, inside)
        if common is not None:
            ranks_of.setdefault(common, []).append(rank)
    if all(_saved_elements(layout, box, len(ranks)) * itemsize < MIN_SAVED_BYTES for box, ranks in ranks_of.items()):
        return None
    boxes = list(ranks_of)
    if any(overlap(box, other) is not None for at, box in enumerate(boxes) for other in boxes[:at]):
        return None
    return {rank: piece for box, ranks in ranks_of.items() for rank, piece in zip(ranks, _divided(box, len(ranks)))
            if size_of(piece)}


def _saved_elements(layout: Layout, box: Box, ranks: int) -> int:
    """Return how many fewer elements of a box the busiest rank sends or receives with two steps than with one, given
    the number of ranks that need the box.
    """
    if ranks == 1:
        return 0
    size = size_of(box)
    received = sum(size_of(common) for source in layout.boxes.values() for common in [overlap(box, source)]
                   if common is not None)
    # A rank receives the other partial sums, or sends its own to all other ranks, whichever is more.
    return (max(received, ranks * size) - 2 * size) * (ranks - 1) // ranks


def _divided(box: Box, count: int) -> List[Box]:
    """Return pieces of a box, along the first dimension in which they are about equal; some may be empty."""
    def largest_share(dimension: int) -> float:
        length = box[dimension][1] - box[dimension][0]
        return -(-length // count) * count / length
    dimensions = range(len(box))
    even = [dimension for dimension in dimensions if largest_share(dimension) <= 1 + _UNEVENNESS]
    dimension = even[0] if even else min(dimensions, key=largest_share)
    low, high = box[dimension]
    return [box[:dimension] + ((low + start, low + end),) + box[dimension + 1:]
            for start, end in split_range(high - low, count)]
