"""Layouts of weights: the box of each weight that a rank holds."""
from typing import Dict, List, Optional, Set, Tuple

from .box import Box, Range, bounding_box, contains, full, overlap, size_of


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
        """Return the box of each rank that holds one: the boxes of two ranks are equal or disjoint, and some rank holds
        each element, even if no operator reads it.
        """
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
                if rank not in their_boxes or not contains(their_boxes[rank], bounding_box(boxes)):
                    return name
        self._held = {name: others.boxes(name) for name in self.shapes}
        return ''

    def _resolve(self, name: str) -> Dict[int, Box]:
        boxes = {rank: bounding_box(needed) for rank, needed in self._needed[name].items()}
        different = sorted(set(boxes.values()))
        covering = _covering(different, self.shapes[name])
        if covering is None:
            return dict.fromkeys(boxes, full(self.shapes[name]))
        return {rank: covering[box] for rank, box in boxes.items()}

    def is_whole_everywhere(self, name: str, ranks: int) -> bool:
        """Return whether every rank holds the whole weight."""
        return self.boxes(name) == dict.fromkeys(range(ranks), full(self.shapes[name]))


def _covering(boxes: List[Box], shape: Tuple[int, ...]) -> Optional[Dict[Box, Box]]:
    """Return, for each of some different boxes, a box around it, so that these are disjoint and cover a tensor; None if
    boxes overlap, or are not the cells of a grid.
    """
    if any(overlap(box, other) is not None for at, box in enumerate(boxes) for other in boxes[:at]):
        return None
    whole = size_of(full(shape))
    if not boxes or sum(map(size_of, boxes)) == whole:
        return dict(zip(boxes, boxes))
    wider: List[Dict[Range, Range]] = []
    for dimension, length in enumerate(shape):
        ranges = sorted({box[dimension] for box in boxes})
        starts = [0] + [low for low, _ in ranges[1:]]
        wider.append({between: (start, end) for between, start, end in zip(ranges, starts, starts[1:] + [length])})
    covering = {box: tuple(wide[between] for wide, between in zip(wider, box)) for box in boxes}
    contains_all = all(contains(cell, box) for box, cell in covering.items())
    return covering if contains_all and sum(map(size_of, covering.values())) == whole else None
