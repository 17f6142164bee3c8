"""The network without a plan, as a user trains it: each worker computes all of it for its own samples, and the store
sums the gradients.
"""
from typing import AbstractSet, Dict, Tuple

from ..parallel.ops.dimension_names import Dimensions
from ..parallel.ops.graph import Entry, Graph
from ..parallel.ops.registry import rule_of
from ..parallel.ops.tracing import TracedNetwork
from ..parallel.runtime.input_shards import InputShards
from ..parallel.runtime.joint_work import joint_operators, whole_outputs
from ..parallel.sharding.box import Box, full, shape_of, size_of
from ..parallel.sharding.split import Split, whole_on
from .task_graph.dataflow import ArrayBoxes, Dataflow


def plain_network(network: TracedNetwork, shares: InputShards, ranks: int, frozen: AbstractSet[str]
                  ) -> Tuple[Graph, Dataflow, Dict[int, Split]]:
    """Return the network of one worker, for the largest share of samples that a rank has, its data flow, and copies of
    its operators on all ranks: the gradients of their weights are summed, and nothing else is exchanged.

    Raises InputError if the network does not take a rank's share of the samples.
    """
    numbers = {operator.name: operator.number for operator in network.graph.operators if operator.op == 'null'}
    data = {name: shape_of(max(shares.inputs[numbers[name], 0].values(), key=size_of)) for name in network.axes}
    graph = network.graph.with_data(network.symbol, data)

    def on_all(entry: Entry) -> Dict[int, Box]:
        return dict.fromkeys(range(ranks), full(graph.shapes[entry]))
    own_arrays = ArrayBoxes({(numbers[name], 0): on_all((numbers[name], 0)) for name in data},
                            {entry: [on_all(entry)] for entry in graph.heads})
    splits = {operator.number: whole_on(len(graph.shape(operator)), range(ranks)) for operator in graph.computing}
    return graph, Dataflow(graph, Dimensions(graph, network.axes), own_arrays, frozen, True), splits


def differs_from_data_parallelism(network: TracedNetwork, splits: Dict[int, Split], ranks: int) -> bool:
    """Return whether the network without a plan computes something else than under data parallelism: statistics of each
    worker's samples, operators that data parallelism computes for the joint batch, or outputs that it returns whole.
    """
    graph, dimensions = network.graph, network.dimensions
    return any(rule_of(operator).has_statistics for operator in graph.computing) or bool(
        joint_operators(graph, dimensions, splits, ranks)) or bool(whole_outputs(graph, dimensions))
