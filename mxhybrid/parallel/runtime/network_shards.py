"""The shards of all operators of a network, and the boxes of weights that they read."""
from typing import Dict, List

from ..ops.fixed_shards import weight_boxes
from ..ops.graph import Entry, Graph, Operator
from ..ops.registry import rule_of
from ..ops.rule import OperatorShard
from ..sharding.box import Box, full
from ..sharding.layout import Layout
from ..sharding.split import OutputShard, Split
from ..sharding.weight_layout import WeightLayouts


class OperatorShards:
    """The shards of an operator by rank."""

    def __init__(self, graph: Graph, operator: Operator, split: Split):
        rule = rule_of(operator)
        self._graph, self._operator, self._split = graph, operator, split
        self.output_shards: Dict[int, OutputShard] = split.shards(graph.shape(operator), rule.grains(graph, operator))
        self.shards: Dict[int, OperatorShard] = {rank: rule.shard(graph, operator, output_shard)
                                                 for rank, output_shard in self.output_shards.items()}

    def layout(self, output: int) -> Layout:
        """Return the layout of an output."""
        boxes = {rank: shard.outputs[output] for rank, shard in self.shards.items()}
        return Layout(self._graph.shape(self._operator, output), boxes, self._split.partials > 1)


class NetworkShards:
    """The shards of all operators on all ranks, and the boxes of weights that they read; the same on all ranks."""

    def __init__(self, graph: Graph, splits: Dict[int, Split]):
        self.graph, self.splits = graph, splits
        self.output_shards: Dict[int, Dict[int, OutputShard]] = {}
        self._operators: Dict[int, OperatorShards] = {}
        self.weights = WeightLayouts(graph.parameters)
        for operator in graph.computing:
            sharded = self._operators[operator.number] = OperatorShards(graph, operator, splits[operator.number])
            self.output_shards[operator.number] = sharded.output_shards
            for rank, shard in sharded.shards.items():
                for entry, box in zip(operator.inputs, shard.inputs):
                    if box is not None and entry[0] in graph.fixed:
                        self._require(entry, rank, box)
        # A weight that is an output of the network is needed whole.
        for entry in graph.heads:
            if entry[0] in graph.fixed:
                for rank in sorted({rank for split in splits.values() for rank in split.ranks}):
                    self._require(entry, rank, full(graph.shapes[entry]))

    def _require(self, entry: Entry, rank: int, box: Box) -> None:
        """Note that a rank reads a box of a weight, or of an operator on weights alone."""
        for name, read in weight_boxes(self.graph, entry, box):
            self.weights.require(name, rank, read)

    def shard(self, operator: Operator, rank: int) -> OperatorShard:
        """Return the shard of an operator that a rank computes."""
        return self._operators[operator.number].shards[rank]

    def of_operator(self, operator: Operator) -> List[OperatorShard]:
        """Return the shards of an operator that ranks compute."""
        return list(self._operators[operator.number].shards.values())

    def layout(self, operator: Operator, output: int) -> Layout:
        """Return the layout of an operator's output."""
        return self._operators[operator.number].layout(output)
