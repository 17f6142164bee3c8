"""What each rank gives and gets: its samples of data and of outputs."""
from typing import Any, Dict, Mapping, Optional

from ..base.errors import InputError
from .boxes import Box, cuts, full
from .dimensions import Dimensions
from .graph import Entry, Graph


class Shares:
    """What each rank gives and gets of data and outputs."""

    def __init__(self, graph: Graph, axes: Mapping[str, Optional[int]], dimensions: Dimensions, ranks: int, rank: int,
                 flows: Any):
        self._graph, self._rank, self.flows = graph, rank, flows
        counts = {graph.data[name][axis] for name, axis in axes.items() if axis is not None}
        if len(counts) != 1:
            raise InputError('parallelize: inputs have %s samples: give the shapes of one joint batch'
                             % sorted(counts))
        self._count = counts.pop()
        self._ranges = cuts(self._count, ranks) if self._count >= ranks else [
            (at * self._count // ranks, at * self._count // ranks + 1) for at in range(ranks)]
        self.samples = slice(*self._ranges[rank])
        self.inputs: Dict[Entry, Dict[int, Box]] = {}
        self._by_name: Dict[str, Box] = {}
        for one in graph.operators:
            if one.op == 'null' and one.name in graph.data:
                boxes = self._boxes((one.number, 0), axes[one.name])
                self.inputs[one.number, 0] = boxes
                self._by_name[one.name] = boxes[rank]
        self.outputs = {entry: self._boxes(entry, dimensions.samples(entry)) for entry in graph.heads}

    def _boxes(self, entry: Entry, axis: Optional[int]) -> Dict[int, Box]:
        shape = self._graph.shapes[entry]
        found = {}
        for rank, (low, high) in enumerate(self._ranges):
            box = list(full(shape))
            if axis is not None and shape[axis] % self._count == 0:
                each = shape[axis] // self._count
                box[axis] = (low * each, high * each)
            found[rank] = tuple(box)
        return found

    def box(self, name: str) -> Box:
        """What this rank gives of an input."""
        return self._by_name[name]
