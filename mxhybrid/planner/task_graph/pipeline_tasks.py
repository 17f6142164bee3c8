"""The blocks of simulated steps of a pipeline: passes of micro-batches through the stages, as scheduled.

MXNet has a copy of the memory of a stage's operators for each micro-batch that the stage holds at a time.  So an
operator begins with a micro-batch when its backward pass of the micro-batch that used the same memory is complete, and
a stage alternates between forward and backward passes.  A forward pass begins when the previous forward pass is
complete, and a backward pass when the previous backward pass is, because redistributions are made in one order
(:mod:`mxhybrid.parallel.runtime.pipeline_calls`).  Other tasks begin in the order in which they become ready.
"""
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np

from ...parallel.ops.graph import Entry
from ...parallel.plans.stages import Stages
from ...parallel.runtime.schedule import most_alive
from ...parallel.sharding.split import Split
from ..simulator.simulation import Simulation
from ..simulator.task_block import BlockInput, TaskBlock
from .gradient_buckets import GradientBuckets, filled_buckets
from .micro_batch_model import MicroBatchModel
from .operator_shards import SplitOperator
from .operator_tasks import Flow
from .redistribution import RankBoxes
from .task_builder import Endpoints, TaskBuilder, TaskSubgraph

#: The time to add a gradient of a micro-batch to the sum, in units of an update of the weight by sgd with momentum, as
#: measured for 29 MB in no cache: 2.4 ms of CPU time for MXNet's addition, and 3.2 ms for the compiled update.
_ADDED = 0.75

#: Tasks of a block that wait, the name of the block that they wait for, and the unit of its endpoints.
_Wait = Tuple[Endpoints, Tuple[Any, ...], int]


class PipelineTasks(GradientBuckets):
    """The blocks of several steps of a pipeline that follow each other, with the attributes of :class:`.StepTasks`.

    - `splits`: the splits of operators for a micro-batch, each within one stage.
    - `steps`: the number of steps.
    """

    def __init__(self, micro_batch: MicroBatchModel, stages: Stages, splits: Mapping[int, Split], steps: int):
        self._micro_batch, self._model, self._stages = micro_batch, micro_batch.model, stages
        self._dataflow, self._splits = micro_batch.dataflow, splits
        self._ranks, self._graph = self._model.machine.ranks, self._model.graph
        self._count = stages.micro_batches
        self._operators: Dict[int, SplitOperator] = {number: self._model.operator(number, split)
                                                     for number, split in splits.items()}
        self._flows: Dict[Entry, Flow] = {entry: self._model.flow(entry, [
            self._operators[entry[0]], *[self._operators[number] for number, _ in readers]])
            for entry, readers in self._dataflow.consumers.items()}
        self._weights = {name: self._model.weights.shards(name, [self._operators[reader.number] for reader in readers])
                         for name, readers in self._dataflow.readers.items()}
        self._buckets = filled_buckets([name for name in self._dataflow.trained if self._weights[name].is_replicated],
                                       self._model.weights.bytes_of)
        self._alive = {number: most_alive(stages.schedule, stages.of_rank(split.ranks[0]), len(stages.ranks),
                                          stages.micro_batches) for number, split in splits.items()}
        self._stage_of = {number: stages.of_rank(split.ranks[0]) for number, split in splits.items()}
        #: By stage: the operators at which a pass ends, and by operator: whether a pass begins there.
        self._last: Dict[bool, Dict[int, int]] = {False: {}, True: {}}
        self._begins: Dict[bool, Dict[int, bool]] = {False: {}, True: {}}
        self._find_ends()
        self.memory = self._memory()
        #: The tasks of each block of a step, and their dependencies in the step and in the step before.
        self._subgraphs: Dict[Tuple[Any, ...], TaskSubgraph] = {}
        self._waits: Dict[Tuple[Any, ...], List[_Wait]] = {}
        self._former_waits: Dict[Tuple[Any, ...], List[_Wait]] = {}
        self._make_blocks()
        names = [name for name in self._order() if name in self._subgraphs]
        self.keys = {name: number for number, name in enumerate(names)}
        self.blocks = {block.key: block for step in range(steps) for block in self._blocks(step)}

    def held_outputs(self, number: int) -> int:
        """Return the number of micro-batches whose outputs of an operator its ranks hold at most."""
        return self._alive[number] if number in self._dataflow.learning else 1

    def _find_ends(self) -> None:
        """Find the operators at which passes of stages begin and end."""
        stage_of, learning = self._stage_of, self._dataflow.learning
        readers: Dict[int, List[int]] = {}
        for number in self._dataflow.computing:
            sources = [source for source, _ in self._graph.operators[number].inputs if source in stage_of]
            self._begins[False][number] = all(stage_of[source] != stage_of[number] for source in sources)
            self._last[False][stage_of[number]] = number
            for source in sources:
                readers.setdefault(source, []).append(number)
        for number in reversed(self._dataflow.computing):
            if number in learning:
                self._begins[True][number] = all(stage_of[reader] != stage_of[number]
                                                 for reader in readers.get(number, ()) if reader in learning)
                self._last[True][stage_of[number]] = number

    def _after_pass_before(self, first: Endpoints, number: int, micro_batch: int, back: bool) -> List[_Wait]:
        """Return the wait for the previous pass, if a pass begins with this operator; otherwise nothing."""
        if not micro_batch or not self._begins[back][number]:
            return []
        last = self._last[back][self._stage_of[number]]
        return [(first, ('backward' if back else 'forward', last, micro_batch - 1), 0)]

    def _memory(self) -> np.ndarray:
        """Return the bytes by rank: weights, with their gradients and states, and outputs of operators."""
        memory = np.zeros(self._ranks)
        for shards in self._weights.values():
            memory += shards.bytes
        for number, operator in self._operators.items():
            memory += operator.output_bytes * self.held_outputs(number)
        return memory

    def _order(self) -> List[Tuple[Any, ...]]:
        """Return the names of the blocks of a step in the order in which the script asks for them."""
        data, micro_batches = self._micro_batch.data, range(self._count)
        computing, heads = self._dataflow.computing, self._micro_batch.heads
        outputs: Dict[int, List[Entry]] = {}
        for entry in self._flows:
            outputs.setdefault(entry[0], []).append(entry)
        names: List[Tuple[Any, ...]] = [('step', None, 0)]
        names += [('redistribution', entry, micro_batch) for entry in data for micro_batch in micro_batches]
        for micro_batch in micro_batches:
            for number in computing:
                names += [('forward', number, micro_batch)]
                names += [('redistribution', entry, micro_batch) for entry in outputs.get(number, [])]
            names += [('output', entry, micro_batch) for entry in heads]
            names += [('output_back', entry, micro_batch) for entry in heads]
            for number in reversed(computing):
                names += [('redistribution_back', entry, micro_batch) for entry in outputs.get(number, [])]
                names += [('backward', number, micro_batch)]
            names += [('accumulate', name, micro_batch) for name in self._dataflow.trained]
        return names + [('weight', name, 0) for name in self._dataflow.trained]

    # -- blocks --------------------------------------------------------------------------------------------------------

    def _blocks(self, step: int) -> List[TaskBlock]:
        first, blocks = step * len(self.keys), []
        for name, number in self.keys.items():
            inputs = self._inputs(self._waits.get(name, ()), first)
            if step:
                inputs += self._inputs(self._former_waits.get(name, ()), first - len(self.keys))
            blocks.append(TaskBlock(first + number, self._subgraphs[name].content, inputs))
        return blocks

    def _inputs(self, waits: Any, first: int) -> List[BlockInput]:
        return [BlockInput(first + self.keys[name], endpoints.dependencies, unit * self._ranks)
                for endpoints, name, unit in waits if name in self.keys and len(endpoints.tasks)]

    def _add(self, name: Tuple[Any, ...], subgraph: TaskSubgraph, waits: List[_Wait],
             former: Optional[List[_Wait]] = None) -> None:
        if subgraph.content.size:
            self._subgraphs[name], self._waits[name] = subgraph, waits
            if former:
                self._former_waits[name] = former

    def _make_blocks(self) -> None:
        for micro_batch in range(self._count):
            for entry in self._micro_batch.data:
                subgraph = self._micro_batch.input_tasks(entry, micro_batch, self._splits)
                self._add(('redistribution', entry, micro_batch), subgraph, [(subgraph.first, ('step', None, 0), 0)])
            for number in self._dataflow.computing:
                self._add_forward(number, micro_batch)
            for entry, flow in self._flows.items():
                self._add_redistributions(entry, flow, micro_batch)
            for entry in self._micro_batch.heads:
                self._add_output(entry, micro_batch)
            for number in self._dataflow.computing:
                if number in self._dataflow.learning:
                    self._add_backward(number, micro_batch)
            for name in self._dataflow.trained:
                self._add_accumulation(name, micro_batch)
        for name in self._dataflow.trained:
            self._add_weight(name)
        script = self._script()
        # The script waits for the outputs of a step before it begins the next one.
        self._add(('step', None, 0), script, [], [
            (script.first, ('output', entry, micro_batch) if ('output', entry, micro_batch) in self._subgraphs
             else ('forward', entry[0], micro_batch), 0)
            for entry in self._micro_batch.heads for micro_batch in range(self._count)])

    def _script(self) -> TaskSubgraph:
        """Return the tasks of the training loop on each rank, as :meth:`OperatorTasks.script`, for its own weights."""
        machine, trained = self._model.machine, np.zeros(self._ranks, int)
        tasks, cost = TaskBuilder(machine), machine.cluster.costs['step']
        for name in self._dataflow.trained:
            trained[self._weights[name].boxes.ranks] += 1
        loop = {rank: tasks.spend('step', rank, cost.seconds(int(trained[rank]), 0), cost.latency_s)
                for rank in range(self._ranks)}
        ends = Endpoints.by_rank(loop)
        return tasks.subgraph(ends, ends)

    def _wait_for_input(self, endpoints: Endpoints, entry: Entry, reader: Tuple[int, int], micro_batch: int) -> _Wait:
        if entry not in self._flows:
            return endpoints, ('redistribution', entry, micro_batch), 0
        unit = self._flows[entry].redistribution_of[reader]
        if unit is None:
            return endpoints, ('forward', entry[0], micro_batch), 0
        return endpoints, ('redistribution', entry, micro_batch), unit

    def _add_forward(self, number: int, micro_batch: int) -> None:
        subgraph = self._model.compute(number, self._operators[number], False)
        first, operator = subgraph.first, self._graph.operators[number]
        waits = self._after_pass_before(first, number, micro_batch, False)
        if self._begins[False][number]:
            waits.append((first, ('step', None, 0), 0))
        waits += [self._wait_for_input(first, entry, (number, index), micro_batch)
                  for index, entry in enumerate(operator.inputs) if entry[0] not in self._graph.fixed]
        if micro_batch >= self._alive[number]:
            waits.append((first, ('backward', number, micro_batch - self._alive[number]), 0))
        former = [(first, ('weight', self._bucket_name(name), 0), 0)
                  for name in self._dataflow.weights_of.get(number, ())]
        self._add(('forward', number, micro_batch), subgraph, waits, former)

    def _add_redistributions(self, entry: Entry, flow: Flow, micro_batch: int) -> None:
        subgraph = self._model.redistribution_tasks(entry, flow, False)
        self._add(('redistribution', entry, micro_batch), subgraph,
                  [(subgraph.first, ('forward', entry[0], micro_batch), 0)])
        back, waits = self._model.redistribution_tasks(entry, flow, True), []
        for (reader, _), unit in flow.redistribution_of.items():
            if unit is not None and reader in self._dataflow.learning:
                waits.append((back.first.of_unit(unit), ('backward', reader, micro_batch), 0))
        self._add(('redistribution_back', entry, micro_batch), back, waits)

    def _add_output(self, entry: Entry, micro_batch: int) -> None:
        subgraph = self._micro_batch.output_tasks(entry, micro_batch, self._splits, False)
        self._add(('output', entry, micro_batch), subgraph, [(subgraph.first, ('forward', entry[0], micro_batch), 0)])
        if self._stages.schedule == 'gpipe' and entry[0] in self._dataflow.learning:
            back = self._micro_batch.output_tasks(entry, micro_batch, self._splits, True)
            self._add(('output_back', entry, micro_batch), back, [(back.first, ('output', entry, micro_batch), 0)])

    def _add_backward(self, number: int, micro_batch: int) -> None:
        subgraph = self._model.compute(number, self._operators[number], True)
        first = subgraph.first
        waits: List[_Wait] = [(first, ('forward', number, micro_batch), 0)]
        waits += self._after_pass_before(first, number, micro_batch, True)
        for index in range(self._graph.operators[number].outputs):
            entry = number, index
            if ('output_back', entry, micro_batch) in self._subgraphs:
                waits.append((first, ('output_back', entry, micro_batch), 0))
            for (reader, _), unit in (self._flows[entry].redistribution_of if entry in self._flows else {}).items():
                if unit is not None:
                    waits.append((first, ('redistribution_back', entry, micro_batch), unit))
                elif reader in self._dataflow.learning:
                    waits.append((first, ('backward', reader, micro_batch), 0))
        self._add(('backward', number, micro_batch), subgraph, waits)

    # -- weights -------------------------------------------------------------------------------------------------------

    def _add_accumulation(self, name: str, micro_batch: int) -> None:
        """Add the tasks that add the gradient of a micro-batch to the sum."""
        boxes, itemsize = self._weights[name].boxes, self._model.weights.itemsizes[name]
        subgraph = self._model.memo.once(('accumulate', boxes.id, itemsize), self._accumulation, boxes, itemsize)
        self._add(('accumulate', name, micro_batch), subgraph, [
            (subgraph.first, ('backward', reader.number, micro_batch), 0) for reader in self._dataflow.readers[name]
            if reader.number in self._dataflow.learning])

    def _accumulation(self, boxes: RankBoxes, itemsize: int) -> TaskSubgraph:
        tasks, cost = TaskBuilder(self._model.machine), self._model.machine.cluster.costs['update']
        ends = Endpoints.by_rank({rank: tasks.spend('accumulate', rank, cost.seconds(1, _ADDED * itemsize * size))
                                  for rank, size in zip(boxes.ranks.tolist(), boxes.sizes().tolist())})
        return tasks.subgraph(ends, ends)

    def _add_weight(self, name: str) -> None:
        names = self.summed_with(name)
        if names[0] != name:
            return
        weights = self._model.weights
        subgraph = (weights.gradient_bucket(names) if name in self._buckets
                    else weights.sharded_weight(name, self._weights[name]))
        self._add(('weight', name, 0), subgraph, [
            (subgraph.first, ('accumulate', summed, micro_batch), 0) for summed in names
            for micro_batch in range(self._count)])


def single_step(micro_batch: MicroBatchModel, stages: Stages, splits: Mapping[int, Split]) -> Tuple[float, float]:
    """Return the seconds of a single step of a pipeline, by itself, and the bytes of the fullest rank."""
    tasks, machine = PipelineTasks(micro_batch, stages, splits, 1), micro_batch.model.machine
    return (Simulation(machine.resources, groups=machine.groups).run(tasks.blocks.values()),
            float(tasks.memory.max()))
