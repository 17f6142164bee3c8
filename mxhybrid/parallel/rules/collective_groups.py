"""Groups of ranks that compute an operator together."""
from typing import Dict, List, Tuple

from ..sharding.box import Box


def groups_of(boxes: Dict[int, Box], axes: Tuple[int, ...]) -> Dict[int, List[Box]]:
    """Return, for each rank, the sorted boxes that differ from its own in `axes` only; copies count once."""
    def key(box: Box) -> Box:
        return tuple(side for axis, side in enumerate(box) if axis not in axes)
    groups: Dict[Box, List[Box]] = {}
    for box in sorted(set(boxes.values())):
        groups.setdefault(key(box), []).append(box)
    return {rank: groups[key(box)] for rank, box in boxes.items()}
