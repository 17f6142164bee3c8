"""The shards of all operators of a network, and the boxes of weights that they read."""
from typing import Dict, Tuple

from ..ops.fixed_shards import shard_of_fixed
from ..ops.graph import Graph, Operator
from ..ops.registry import is_elementwise, rule_of
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
                for (source, _), box in zip(operator.inputs, shard.inputs):
                    if box is not None and source in graph.fixed:
                        self._require(source, rank, box)
        # A weight that is an output of the network is needed whole.
        for source, _ in graph.heads:
            if source in graph.fixed:
                for rank in sorted({rank for split in splits.values() for rank in split.ranks}):
                    self._require(source, rank, full(graph.shapes[source, 0]))

    def _require(self, number: int, rank: int, box: Box) -> None:
        """Note that a rank reads a box of a weight, or of an operator on weights alone."""
        operator = self.graph.operators[number]
        if operator.op == 'null':
            self.weights.require(operator.name, rank, box)
            return
        shard = None if is_elementwise(operator) else shard_of_fixed(self.graph, operator, box)
        for position, entry in enumerate(operator.inputs):
            read = box if is_elementwise(operator) else full(self.graph.shapes[entry]) if shard is None else (
                shard.inputs[position])
            if read is not None:
                self._require(entry[0], rank, read)

    def shard(self, operator: Operator, rank: int) -> OperatorShard:
        """Return the shard of an operator that a rank computes."""
        return self._shards[operator.number, rank]

    def layout(self, operator: Operator, output: int) -> Layout:
        """Return the layout of an operator's output."""
        partial = self.splits[operator.number].addends > 1
        boxes = {rank: self.shard(operator, rank).outputs[output] for rank in self.output_shards[operator.number]}
        return Layout(self.graph.shape(operator, output), boxes, partial)
