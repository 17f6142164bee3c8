"""What a training step takes by a plan, simulated."""
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from ...base.settings import TablePlan
from ...parallel.sharding.split import Split
from ..simulator.simulation import Simulation, Times
from .operator_tasks import OperatorTasks
from .simulated_tasks import SimulatedTask, Where
from .step_tasks import StepTasks

#: Steps that are simulated behind each other, and which of them counts: it finds the one before it still under way, and
#: the one behind it comes while it is.
_STEPS, _SHOWN = 4, 2
#: Operators whose weights are matrices and filters, which a split of the layer cuts.
_CUTS_WEIGHTS = ('FullyConnected', 'Convolution', 'Deconvolution', 'Embedding')


class _Simulated:
    """Steps that were simulated: all of their tasks."""

    def __init__(self, model: OperatorTasks, splits: Mapping[int, Split], tables: Optional[Mapping[str, TablePlan]],
                 dense: Optional[str]):
        self.blocks = StepTasks(model, splits, _STEPS, tables, dense)
        self.simulation = Simulation(model.machine.resources, groups=model.machine.groups)
        self.simulation.run(self.blocks.blocks.values())
        self.times: Dict[int, Times] = self.simulation.timeline()
        self.names = {number: what for what, number in self.blocks.keys.items()}

    def end(self, step: int) -> float:
        """Of a step, in seconds."""
        return max((float(times.ends.max()) for key, times in self.times.items()
                    if key // len(self.names) == step and len(times.ends)), default=0.0)


class Prediction:
    """Of a plan.  Tasks are simulated anew when they are asked for, and kept then: of many ranks they are gigabytes.

    Attributes
    ----------
    seconds : float
        Of a step, when many follow each other.
    memory : numpy.ndarray
        Bytes of weights, gradients, states of optimizers and outputs of operators, by rank.
    """

    def __init__(self, model: OperatorTasks, splits: Mapping[int, Split],
                 tables: Optional[Mapping[str, TablePlan]] = None, dense: Optional[str] = None):
        self._model, self._plan = model, (splits, tables, dense)
        self._known: Optional[_Simulated] = None
        simulated = _Simulated(model, *self._plan)
        self.memory = simulated.blocks.memory
        self._begin = simulated.end(_SHOWN - 1)
        self.seconds = simulated.end(_SHOWN) - self._begin

    def _simulated(self) -> _Simulated:
        if self._known is None:
            self._known = _Simulated(self._model, *self._plan)
        return self._known

    def tasks(self) -> List[SimulatedTask]:
        """Those of a step, by their starts, but for what takes no time."""
        simulated, found = self._simulated(), []
        for key, times in simulated.times.items():
            if key // len(simulated.names) == _SHOWN:
                found += [self._task(key, at, start, end) for at, (start, end) in
                          enumerate(zip(times.starts.tolist(), times.ends.tolist())) if end > start]
        return sorted(found, key=lambda one: (one.start_s, one.end_s))

    def critical_path(self) -> Sequence[SimulatedTask]:
        """What the end of a step waits for, since the end of the one before."""
        last, path = self._begin + self.seconds, self._simulated().simulation.critical_path()
        return [self._task(link.key, link.task, link.start, link.end)
                for link in path if link.end > self._begin and link.start < last]

    def _task(self, key: int, index: int, start: float, end: float) -> SimulatedTask:
        blocks, names = self._simulated().blocks, self._simulated().names
        tasks = blocks.tasks(key)
        kind, which = names[key % len(names)]
        shown = tasks.kind(index)
        if kind == 'back':
            shown = 'exchange_back'
        elif shown == 'exchange' and kind in ('forward', 'backward'):
            shown = 'exchange_within' if kind == 'forward' else 'exchange_within_back'
        elif shown == 'sum' and not blocks.is_bundled(which):
            shown = 'group_sum'
        resource = tasks.resource[index]
        machine, where = self._model.machine, tasks.rank(index)
        link: Where = where if resource >= 0 and resource == machine.core_of(where) else (
            machine.names[resource] if resource >= 0 else 'memory')
        size = int(tasks.work[index]) if isinstance(link, str) and resource >= 0 else 0
        return SimulatedTask(self._label(kind, which), link, start - self._begin, end - self._begin, shown, size)

    def _label(self, kind: str, which: Any) -> str:
        graph = self._model.graph
        if kind == 'step':
            return 'step'
        if kind == 'weight':
            return self._simulated().blocks.label_of(which)
        number = which[0] if isinstance(which, tuple) else which
        return graph.label(graph.operators[number])

    def layers_to_split(self) -> Dict[str, str]:
        """By label of weights that are summed together: the layer with most of them, where splitting that cuts them."""
        blocks, graph, found = self._simulated().blocks, self._model.graph, {}
        for name in self._model.dataflow.trained:
            largest = max(blocks.summed_with(name), key=lambda one: np.prod(graph.parameters[one]))
            one = graph.operators[self._model.dataflow.readers[largest][0].number]
            if one.op in _CUTS_WEIGHTS and len(graph.parameters[largest]) > 1:  # not a bias
                found[blocks.label_of(name)] = graph.label(one)
        return found

    def busy(self) -> List[Tuple[Where, float]]:
        """Seconds of a step in which each rank and link does something."""
        found: Dict[Where, float] = {}
        for task in self.tasks():
            found[task.where] = found.get(task.where, 0.0) + task.end_s - task.start_s
        return sorted(found.items(), key=lambda item: -item[1])

    def seconds_of(self) -> Dict[str, Tuple[float, float]]:
        """Of the fullest rank, by label: seconds in which it computes, and in which something of it moves."""
        every: Dict[str, Dict[Where, List[float]]] = {}
        for task in self.tasks():
            found = every.setdefault(task.label, {}).setdefault(task.where, [0.0, 0.0])
            found[task.kind not in ('forward', 'backward')] += task.end_s - task.start_s
        return {label: (max(one[0] for one in by.values()), max(one[1] for one in by.values()))
                for label, by in every.items()}

    def memory_of(self) -> Dict[str, float]:
        """Of the fullest rank of each operator, by label: bytes of its weights, gradients and states of those that are
        trained, and of its outputs.
        """
        dataflow, graph = self._model.dataflow, self._model.graph
        operators = {number: self._model.operator(number, split) for number, split in self._plan[0].items()}
        held = {name: self._model.held(name, [operators[reader.number] for reader in readers])
                for name, readers in dataflow.readers.items()}
        return {graph.label(graph.operators[number]): float(one.activations.max() + sum(
            held[name].size.max() for name in dataflow.kept_of.get(number, ())))
                for number, one in operators.items()}

    def largest_memory(self) -> float:
        """Bytes of the fullest rank."""
        return float(np.max(self.memory))
