"""Which box of each weight a rank holds."""
from typing import Dict, List, Optional, Set, Tuple

from .box import Box, bounding_box, full, overlap
from .layout import group_of


class WeightLayouts:
    """Of all parameters of a network; `shapes` are their whole ones."""

    def __init__(self, shapes: Dict[str, Tuple[int, ...]]):
        self.shapes = shapes
        self._needed: Dict[str, Dict[int, Set[Box]]] = {name: {} for name in shapes}
        self._held: Optional[Dict[str, Dict[int, Box]]] = None

    def require(self, name: str, rank: int, box: Box) -> None:
        """A part of an operator on a rank reads a box."""
        assert self._held is None
        self._needed[name].setdefault(rank, set()).add(box)

    def boxes(self, name: str) -> Dict[int, Box]:
        """What each rank holds, if anything: boxes of two ranks are the same, or have nothing in common."""
        if self._held is None:
            self._held = {one: self._resolve(one) for one in self.shapes}
        return self._held[name]

    def adopt(self, others: 'WeightLayouts') -> str:
        """Have ranks hold the boxes of `others`, which have in them what is needed here; else the name of a weight for
        which that is not so.
        """
        for name, needed in self._needed.items():
            held = others.boxes(name)
            for rank, boxes in needed.items():
                if rank not in held or overlap(bounding_box(boxes), held[rank]) != bounding_box(boxes):
                    return name
        self._held = {name: others.boxes(name) for name in self.shapes}
        return ''

    def _resolve(self, name: str) -> Dict[int, Box]:
        boxes = {rank: bounding_box(needed) for rank, needed in self._needed[name].items()}
        different = sorted(set(boxes.values()))
        if any(overlap(one, other) is not None for at, one in enumerate(different) for other in different[:at]):
            return dict.fromkeys(boxes, full(self.shapes[name]))
        return boxes

    def group(self, name: str, rank: int) -> Optional[List[int]]:
        """The ranks that hold the same box as this one; None if it holds none."""
        return group_of(rank, self.boxes(name))

    def is_whole_everywhere(self, name: str, ranks: int) -> bool:
        """Whether every rank holds all of it."""
        return self.boxes(name) == dict.fromkeys(range(ranks), full(self.shapes[name]))
