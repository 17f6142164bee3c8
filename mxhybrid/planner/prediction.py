"""What a training step takes by a plan, simulated."""
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from ..base.settings import TablePlan
from ..parallel.split import Split
from .simulated_tasks import SimulatedTask, Where
from .simulator import Simulation, Times
from .step_blocks import StepBlocks
from .step_model import StepModel

#: Steps that are simulated behind each other, and which of them counts: it finds the one before it still under way, and
#: the one behind it comes while it is.
_STEPS, _SHOWN = 4, 2


class Prediction:
    """Of a plan.

    Attributes
    ----------
    seconds : float
        Of a step, when many follow each other.
    memory : numpy.ndarray
        Bytes of weights, gradients, states of optimizers and outputs of operators, by rank.
    """

    def __init__(self, model: StepModel, splits: Mapping[int, Split],
                 tables: Optional[Mapping[str, TablePlan]] = None, dense: Optional[str] = None):
        self._model = model
        self._blocks = StepBlocks(model, splits, _STEPS, tables, dense)
        self._simulation = Simulation(model.machine.resources)
        self._simulation.run(self._blocks.blocks.values())
        self._times: Dict[int, Times] = self._simulation.timeline()
        self._names = {number: what for what, number in self._blocks.keys.items()}
        self.memory = self._blocks.memory
        ends = [self._end(step) for step in range(_STEPS)]
        self.seconds, self._begin = ends[_SHOWN] - ends[_SHOWN - 1], ends[_SHOWN - 1]

    def _end(self, step: int) -> float:
        return max((float(times.ends.max()) for key, times in self._times.items()
                    if key // len(self._names) == step and len(times.ends)), default=0.0)

    def tasks(self) -> List[SimulatedTask]:
        """Those of a step, by their starts, but for what takes no time."""
        found = []
        for key, times in self._times.items():
            if key // len(self._names) == _SHOWN:
                found += [self._task(key, at, start, end) for at, (start, end) in
                          enumerate(zip(times.starts.tolist(), times.ends.tolist())) if end > start]
        return sorted(found, key=lambda one: (one.start_s, one.end_s))

    def critical_path(self) -> Sequence[SimulatedTask]:
        """What the end of a step waits for, since the end of the one before."""
        last = self._begin + self.seconds
        return [self._task(link.key, link.task, link.start, link.end)
                for link in self._simulation.critical_path() if link.end > self._begin and link.start < last]

    def _task(self, key: int, index: int, start: float, end: float) -> SimulatedTask:
        tasks = self._blocks.tasks(key)
        kind, which = self._names[key % len(self._names)]
        shown = tasks.kind(index)
        if kind == 'back' or kind == 'backward' and shown == 'exchange':
            shown = 'exchange_back'
        elif shown == 'sum' and not self._blocks.is_bundled(which):
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
            return self._blocks.label_of(which)
        number = which[0] if isinstance(which, tuple) else which
        return graph.label(graph.operators[number])

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

    def largest_memory(self) -> float:
        """Bytes of the fullest rank."""
        return float(np.max(self.memory))
