"""The prediction of a training step with a plan, by simulation."""
import functools
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from ...base.settings import TablePlan
from ...parallel.ops.registry import multiplies_weights, rule_of
from ...parallel.plans.stages import Stages
from ...parallel.sharding.split import Split
from ..simulator.simulation import BlockTimes, Simulation
from ..simulator.task_block import TaskBlock
from .micro_batch_model import MicroBatchModel
from .operator_tasks import OperatorTasks
from .pipeline_tasks import PipelineTasks
from .simulated_tasks import TABLES_LABEL, SimulatedTask, Where
from .step_tasks import StepTasks
from .task_builder import kind_and_rank

#: The number of steps that are simulated one after the other, and the index of the step that is reported: it begins
#: while the step before it is under way, and the next one begins while it is.
_STEPS, _REPORTED_STEP = 4, 2

#: The times of a rank's program, forward and backward, divided by the sums of its operators' times.
ProgramScale = Tuple[float, float]


class _SimulatedSteps:
    """The simulation of some steps, with all of their tasks."""

    def __init__(self, model: OperatorTasks, step_tasks: Union[StepTasks, PipelineTasks], scale: ProgramScale):
        self.step_tasks = step_tasks
        self.names: Dict[int, Tuple[Any, ...]] = {number: name for name, number in self.step_tasks.keys.items()}
        self.simulation = Simulation(model.machine.resources, groups=model.machine.groups)
        self.simulation.run([self._scaled(block, scale) for block in self.step_tasks.blocks.values()])
        self.times: Dict[int, BlockTimes] = self.simulation.timeline()

    def _scaled(self, block: TaskBlock, scale: ProgramScale) -> TaskBlock:
        """Return a block in which computation takes a multiple of the time."""
        kind = self.names[block.key % len(self.names)][0]
        factor = dict(zip(('forward', 'backward'), scale)).get(kind, 1.0)
        if factor == 1.0:
            return block
        tasks = block.content.tasks
        is_of_kind = [kind_and_rank(code)[0] == kind for code in tasks['kind_code'].tolist()]
        return TaskBlock(block.key, block.content.with_work(np.where(is_of_kind, factor, 1.0) * tasks['work']),
                         block.inputs)

    def end(self, step: int) -> float:
        """Return the end of a step, in seconds."""
        return max((float(times.ends.max()) for key, times in self.times.items()
                    if key // len(self.names) == step and len(times.ends)), default=0.0)


class Prediction:
    """The prediction of a plan.

    The tasks, which take gigabytes for many ranks, are simulated again when they are asked for, and kept then.

    Attributes
    ----------
    seconds : float
        The time of a step, when many follow each other.
    memory : numpy.ndarray
        By rank: bytes of weights, gradients, states of optimizers and outputs of operators.
    """

    def __init__(self, model: OperatorTasks, splits: Mapping[int, Split],
                 tables: Optional[Mapping[str, TablePlan]] = None,
                 scale: ProgramScale = (1.0, 1.0)):
        self._simulate(model, splits, lambda: StepTasks(model, splits, _STEPS, tables), scale)

    @classmethod
    def of_pipeline(cls, micro_batch: MicroBatchModel, stages: Stages, splits: Mapping[int, Split]
                    ) -> 'Prediction':
        """Return the prediction of a pipeline, given the splits of operators for a micro-batch."""
        prediction = cls.__new__(cls)
        prediction._simulate(micro_batch.model, splits, lambda: PipelineTasks(micro_batch, stages, splits, _STEPS))
        return prediction

    def _simulate(self, model: OperatorTasks, splits: Mapping[int, Split],
                  make_tasks: Callable[[], Union[StepTasks, PipelineTasks]], scale: ProgramScale = (1.0, 1.0)) -> None:
        self._model, self._splits = model, splits
        self._make_steps = lambda: _SimulatedSteps(model, make_tasks(), scale)
        steps = self._make_steps()
        self.memory = steps.step_tasks.memory
        self._begin = steps.end(_REPORTED_STEP - 1)
        self.seconds = steps.end(_REPORTED_STEP) - self._begin

    @functools.cached_property
    def _steps(self) -> _SimulatedSteps:
        return self._make_steps()

    def tasks(self) -> List[SimulatedTask]:
        """Return the tasks of a step in order of their starts, without those that take no time."""
        steps, tasks = self._steps, []
        for key, times in steps.times.items():
            if key // len(steps.names) == _REPORTED_STEP:
                tasks += [self._task(key, index, start, end) for index, (start, end) in
                          enumerate(zip(times.starts.tolist(), times.ends.tolist())) if end > start]
        return sorted(tasks, key=lambda task: (task.start_s, task.end_s))

    def critical_path(self) -> Sequence[SimulatedTask]:
        """Return the tasks that the end of a step waits for, from the end of the step before."""
        end, path = self._begin + self.seconds, self._steps.simulation.critical_path()
        return [self._task(task.key, task.task, task.start, task.end)
                for task in path if task.end > self._begin and task.start < end]

    def _task(self, key: int, index: int, start: float, end: float) -> SimulatedTask:
        steps, machine = self._steps, self._model.machine
        task = steps.step_tasks.blocks[key].content.tasks[index]
        block_kind, item = steps.names[key % len(steps.names)][:2]
        kind, rank = kind_and_rank(int(task['kind_code']))
        if block_kind in ('redistribution_back', 'output_back'):
            kind = 'redistribution_back'
        elif kind == 'redistribution' and block_kind in ('forward', 'backward'):
            kind = 'redistribution_within' if block_kind == 'forward' else 'redistribution_within_back'
        elif kind == 'sum' and not steps.step_tasks.is_in_bucket(item):
            kind = 'group_sum'
        resource = int(task['resource'])
        if rank >= 0 and resource == machine.core[rank]:
            where: Where = rank
        else:
            where = machine.names[resource] if resource >= 0 else 'memory'
        size_bytes = int(task['work']) if isinstance(where, str) and resource >= 0 else 0
        label = TABLES_LABEL if block_kind == 'step' and kind != 'step' else self._label(block_kind, item)
        return SimulatedTask(label, where, start - self._begin, end - self._begin, kind,
                             size_bytes)

    def _label(self, block_kind: str, item: Any) -> str:
        graph = self._model.graph
        if block_kind == 'step':
            return 'step'
        if block_kind == 'accumulate':
            return str(item)
        if block_kind == 'weight':
            return self._steps.step_tasks.label_of(item)
        number = item[0] if isinstance(item, tuple) else item
        return graph.label(graph.operators[number])

    def layers_to_split(self) -> Dict[str, str]:
        """Return the layer to split so that fewer gradients are summed, by the label of the weights in the sum.

        It is the layer of the largest weight; layers whose weights stay whole when they are split are left out.
        """
        step_tasks, dataflow, graph, layers = self._steps.step_tasks, self._model.dataflow, self._model.graph, {}
        for name in dataflow.trained:
            largest = max(step_tasks.summed_with(name), key=lambda weight: np.prod(graph.parameters[weight]))
            operator = graph.operators[dataflow.readers[largest][0].number]
            divides = rule_of(operator).splits_weight or multiplies_weights(graph, operator)
            if divides and len(graph.parameters[largest]) > 1:  # not a bias
                layers[step_tasks.label_of(name)] = graph.label(operator)
        return layers

    def busy(self) -> List[Tuple[Where, float]]:
        """Return each rank and link with the seconds of a step in which it is busy, the busiest first."""
        busy_s: Dict[Where, float] = {}
        for task in self.tasks():
            busy_s[task.where] = busy_s.get(task.where, 0.0) + task.end_s - task.start_s
        return sorted(busy_s.items(), key=lambda item: -item[1])

    def seconds_of(self) -> Dict[str, Tuple[float, float]]:
        """Return the seconds by label in which its busiest rank computes, and its busiest rank or link transfers."""
        seconds: Dict[str, Dict[Where, List[float]]] = {}
        for task in self.tasks():
            compute_and_transfer = seconds.setdefault(task.label, {}).setdefault(task.where, [0.0, 0.0])
            compute_and_transfer[task.kind not in ('forward', 'backward')] += task.end_s - task.start_s
        return {label: (max(both[0] for both in by_place.values()), max(both[1] for both in by_place.values()))
                for label, by_place in seconds.items()}

    def memory_of(self) -> Dict[str, float]:
        """Return the bytes by label of an operator on its fullest rank: weights with gradients and states, outputs."""
        dataflow, graph, weights = self._model.dataflow, self._model.graph, self._model.weights
        operators = {number: self._model.operator(number, split) for number, split in self._splits.items()}
        shards = {name: weights.shards(name, [operators[reader.number] for reader in readers])
                  for name, readers in dataflow.readers.items()}
        held_outputs = self._steps.step_tasks.held_outputs
        return {graph.label(graph.operators[number]): float(operator.output_bytes.max() * held_outputs(number) + sum(
            shards[name].bytes.max() for name in dataflow.kept_of.get(number, ())))
                for number, operator in operators.items()}

    def largest_memory(self) -> float:
        """Return the bytes of the fullest rank."""
        return float(np.max(self.memory))
