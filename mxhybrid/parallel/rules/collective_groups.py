"""Groups of ranks that compute an operator together."""
from typing import Dict, List, Tuple

from ..sharding.box import Box


def groups_of(boxes: Dict[int, Box], axes: Tuple[int, ...]) -> Dict[int, List[Box]]:
    """For each rank the boxes, in order, that differ from its own in `axes` only; copies count once."""
    def key(box: Box) -> Box:
        return tuple(side for axis, side in enumerate(box) if axis not in axes)
    groups: Dict[Box, List[Box]] = {}
    for box in sorted(set(boxes.values())):
        groups.setdefault(key(box), []).append(box)
    return {rank: groups[key(box)] for rank, box in boxes.items()}
