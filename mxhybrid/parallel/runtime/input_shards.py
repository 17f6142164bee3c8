"""The shards of inputs and outputs: the samples that each rank passes in and returns."""
from typing import Any, Dict, List, Mapping, Optional

from ...base.errors import InputError
from ..ops.dimension_names import Dimensions
from ..ops.graph import Entry, Graph
from ..ops.rule import with_range
from ..sharding.box import Box, full, shape_of, split_range
from ..sharding.sample_axis import SampleAxis


class InputShards:
    """The boxes of data and outputs that ranks give and return.

    - `inputs`: the boxes of inputs by rank; `boxes` are those of this rank, by name.
    - `local_inputs`: the shape and type of each input on this rank.
    - `outputs`: the boxes of outputs by rank: several of them, to be concatenated, where all samples occur several
      times, for example after a concatenation along the samples.  All ranks return the whole of an output whose sample
      axis is not known.
    - `ranges`: the samples of the joint batch that each rank gives and returns.
    - `samples`: this rank's samples of the joint batch.
    - `gradient_inputs`: inputs through which gradients go back.
    """

    def __init__(self, graph: Graph, axes: Mapping[str, Optional[int]], dimensions: Dimensions, ranks: int, rank: int,
                 gradient_inputs: Any):
        self._graph, self._rank, self.gradient_inputs = graph, rank, gradient_inputs
        counts = {graph.data[name][axis] for name, axis in axes.items() if axis is not None}
        if len(counts) != 1:
            raise InputError('parallelize: inputs have %s samples: give shapes with the same number of samples'
                             % sorted(counts))
        self._count = counts.pop()
        self.ranges = split_range(self._count, ranks) if self._count >= ranks else [
            (at * self._count // ranks, at * self._count // ranks + 1) for at in range(ranks)]
        self.samples = slice(*self.ranges[rank])
        self.inputs: Dict[Entry, Dict[int, Box]] = {}
        self.boxes: Dict[str, Box] = {}
        for operator in graph.operators:
            if operator.op == 'null' and operator.name in graph.data:
                axis = axes[operator.name]
                boxes, = self._boxes((operator.number, 0), None if axis is None else SampleAxis(axis))
                self.inputs[operator.number, 0] = boxes
                self.boxes[operator.name] = boxes[rank]
        types = graph.input_dtypes
        self.local_inputs = [(shape_of(self.boxes[name]), types[name]) for name in axes]
        self.outputs = {entry: self._boxes(entry, dimensions.sample_axis(entry)) for entry in graph.heads}

    def _boxes(self, entry: Entry, sample_axis: Optional[SampleAxis]) -> List[Dict[int, Box]]:
        whole = full(self._graph.shapes[entry])
        if sample_axis is None:
            return [dict.fromkeys(range(len(self.ranges)), whole)]
        by_rank = [[with_range(whole, sample_axis.axis, rows) for rows in sample_axis.ranges(self._count, low, high)]
                   for low, high in self.ranges]
        return [dict(enumerate(boxes)) for boxes in zip(*by_rank)]
