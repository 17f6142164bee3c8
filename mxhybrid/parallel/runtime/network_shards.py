"""The shards of all operators of a network, and the boxes of weights that they read."""
from typing import Dict, Tuple

from ..ops.fixed_shards import weight_boxes
from ..ops.graph import Entry, Graph, Operator
from ..ops.registry import rule_of
from ..ops.rule import OperatorShard
from ..sharding.box import Box, full
from ..sharding.layout import Layout
from ..sharding.split import OutputShard, Split
from ..sharding.weight_layout import WeightLayouts


class NetworkShards:
    """The shards of all operators on all ranks, and the boxes of weights that they read; the same on all ranks."""

    def __init__(self, graph: Graph, splits: Dict[int, Split]):
        self.graph, self.splits = graph, splits
        self.output_shards: Dict[int, Dict[int, OutputShard]] = {}
        self._shards: Dict[Tuple[int, int], OperatorShard] = {}
        self.weights = WeightLayouts(graph.parameters)
        for operator in graph.computing:
            rule = rule_of(operator)
            self.output_shards[operator.number] = splits[operator.number].shards(graph.shape(operator),
                                                                                 rule.grains(graph, operator))
            for rank, output_shard in self.output_shards[operator.number].items():
                shard = self._shards[operator.number, rank] = rule.shard(graph, operator, output_shard)
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
        return self._shards[operator.number, rank]

    def layout(self, operator: Operator, output: int) -> Layout:
        """Return the layout of an operator's output."""
        partial = self.splits[operator.number].partials > 1
        boxes = {rank: self.shard(operator, rank).outputs[output] for rank in self.output_shards[operator.number]}
        return Layout(self.graph.shape(operator, output), boxes, partial)


def layout_by_split(graph: Graph, operator: Operator, output: int, split: Split) -> Layout:
    """Return the layout of an operator's output, as :meth:`NetworkShards.layout` does, without the other operators."""
    rule = rule_of(operator)
    output_shards = split.shards(graph.shape(operator), rule.grains(graph, operator))
    boxes = {rank: rule.shard(graph, operator, output_shard).outputs[output]
             for rank, output_shard in output_shards.items()}
    return Layout(graph.shape(operator, output), boxes, split.partials > 1)
