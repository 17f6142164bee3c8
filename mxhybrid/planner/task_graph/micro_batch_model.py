"""The model of a network for a micro-batch of a pipeline: its operators, and the transfers of inputs and outputs."""
from typing import AbstractSet, Callable, Dict, List, Mapping

from ...parallel.ops.graph import Entry
from ...parallel.ops.rule import with_range
from ...parallel.ops.tracing import TracedNetwork
from ...parallel.runtime.input_shards import InputShards
from ...parallel.runtime.micro_batches import micro_batch_of, samples_within
from ...parallel.sharding.box import Box, bounding_box, full
from ...parallel.sharding.layout import owners
from ...parallel.sharding.split import Split
from .dataflow import SCRIPT, ArrayBoxes, Dataflow
from .operator_tasks import OperatorTasks
from .task_builder import TaskSubgraph

#: Arrays of each weight in addition to the weight, its gradient and the states of the optimizer: the gradient of one
#: micro-batch, and the sum of these.
MICRO_BATCH_ARRAYS = 2


class MicroBatchModel:
    """The model of a network for a micro-batch.

    - `joint`: the network for the joint batch.
    - `shares`: the samples of the joint batch that each rank has.
    - `frozen`: parameters that receive no gradients.
    - `make_model`: returns the :class:`OperatorTasks` of a :class:`Dataflow`.

    Attributes:

    - `data`, `heads`: inputs that operators read, and outputs of the network.

    Raises InputError if the micro-batches do not divide the joint batch.
    """

    def __init__(self, joint: TracedNetwork, shares: InputShards, micro_batches: int, frozen: AbstractSet[str],
                 make_model: Callable[[Dataflow], OperatorTasks]):
        self.network, self.micro_batches = micro_batch_of(joint, micro_batches), micro_batches
        self._joint, self._shares = joint, shares
        graph = self.network.graph
        dataflow = Dataflow(graph, self.network.dimensions, ArrayBoxes(), frozen)
        self._readers = {entry: readers for entry, readers in dataflow.consumers.items()
                         if graph.operators[entry[0]].op == 'null'}
        self.data = sorted(entry for entry in self._readers if self._readers[entry] and entry in shares.inputs)
        self.heads = list(dict.fromkeys(entry for entry in graph.heads if entry[0] not in graph.fixed))
        # Inputs and outputs of each micro-batch move by redistributions of their own.
        consumers = {entry: [reader for reader in readers if reader[0] != SCRIPT]
                     for entry, readers in dataflow.consumers.items() if entry not in self._readers}
        dataflow.consumers = {entry: readers for entry, readers in consumers.items() if readers}
        dataflow.entries = sorted(dataflow.consumers)
        self.dataflow, self.model = dataflow, make_model(dataflow)

    def input_tasks(self, entry: Entry, micro_batch: int, splits: Mapping[int, Split]) -> TaskSubgraph:
        """Return the tasks that move a micro-batch of an input to the ranks that read it."""
        read: Dict[int, List[Box]] = {}
        for number, input_index in self._readers[entry]:
            for rank, box in self.model.read_boxes(number, splits[number], input_index).items():
                read.setdefault(rank, []).append(box)
        needed = {rank: bounding_box(boxes) for rank, boxes in read.items()}
        name = self.network.graph.operators[entry[0]].name
        axis, held = self._joint.axes[name], self._shares.inputs[entry]
        if axis is not None:
            held = samples_within(held, axis, self.network.graph.shapes[entry][axis], micro_batch)
        return self.model.moved(held, needed, self.network.graph.dtypes[entry].itemsize, False)

    def output_tasks(self, entry: Entry, micro_batch: int, splits: Mapping[int, Split], back: bool) -> TaskSubgraph:
        """Return the tasks that move a micro-batch of an output to its ranks, or with `back` those of its gradient."""
        graph, axis = self.network.graph, self._joint.dimensions.sample_axis(entry)
        held = {rank: box for box, rank in owners(self.model.made_boxes(entry, splits[entry[0]])).items()}
        assert axis is not None
        boxes = {rank: with_range(full(graph.shapes[entry]), axis.axis, (low * axis.each, high * axis.each))
                 for rank, (low, high) in enumerate(self._shares.ranges)}
        samples = self._shares.ranges[-1][1] // self.micro_batches
        needed = samples_within(boxes, axis.axis, samples * axis.each, micro_batch)
        return self.model.moved(held, needed, graph.dtypes[entry].itemsize, back)
