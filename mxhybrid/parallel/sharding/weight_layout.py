"""Layouts of weights: the box of each weight that a rank holds."""
from typing import Dict, List, Optional, Set, Tuple

from .box import Box, bounding_box, full, overlap
from .layout import group_of


class WeightLayouts:
    """The boxes of all parameters of a network that ranks hold; `shapes` are those of the whole parameters."""

    def __init__(self, shapes: Dict[str, Tuple[int, ...]]):
        self.shapes = shapes
        self._needed: Dict[str, Dict[int, Set[Box]]] = {name: {} for name in shapes}
        self._held: Optional[Dict[str, Dict[int, Box]]] = None

    def require(self, name: str, rank: int, box: Box) -> None:
        """Note that a shard of an operator reads a box on a rank."""
        assert self._held is None
        self._needed[name].setdefault(rank, set()).add(box)

    def boxes(self, name: str) -> Dict[int, Box]:
        """Return the box of each rank that holds one: the boxes of two ranks are equal or disjoint."""
        if self._held is None:
            self._held = {weight: self._resolve(weight) for weight in self.shapes}
        return self._held[name]

    def adopt(self, others: 'WeightLayouts') -> str:
        """Let ranks hold the boxes of `others`.  Return the name of a weight of which these lack a required element, ''
        if there is none.
        """
        for name, needed in self._needed.items():
            their_boxes = others.boxes(name)
            for rank, boxes in needed.items():
                required = bounding_box(boxes)
                if rank not in their_boxes or overlap(required, their_boxes[rank]) != required:
                    return name
        self._held = {name: others.boxes(name) for name in self.shapes}
        return ''

    def _resolve(self, name: str) -> Dict[int, Box]:
        boxes = {rank: bounding_box(needed) for rank, needed in self._needed[name].items()}
        different = sorted(set(boxes.values()))
        if any(overlap(box, other) is not None for at, box in enumerate(different) for other in different[:at]):
            return dict.fromkeys(boxes, full(self.shapes[name]))
        return boxes

    def group(self, name: str, rank: int) -> Optional[List[int]]:
        """Return the ranks that hold the same box as `rank`; None if it holds none."""
        return group_of(rank, self.boxes(name))

    def is_whole_everywhere(self, name: str, ranks: int) -> bool:
        """Tell whether every rank holds the whole weight."""
        return self.boxes(name) == dict.fromkeys(range(ranks), full(self.shapes[name]))
