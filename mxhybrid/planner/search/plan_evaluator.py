"""What a search chooses: splits of operators, how rows of tables travel, and what sums dense weights."""
from typing import Any, Dict, Hashable, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from ...base.settings import TablePlan
from ...parallel.sharding.split import Split
from ..simulator.simulation import Simulation
from ..task_graph.operator_tasks import OperatorTasks
from ..task_graph.step_tasks import StepTasks
from .search_problem import Limit
from .search_space import SearchSpace

#: As a search has it: splits of operators that decide, in their order, how rows of each table travel, and what sums
#: dense weights, if there is a choice.
Decisions = Tuple[Any, ...]


class PlanEvaluator:
    """A :class:`.search_problem.SearchProblem`, whose operators are those of :attr:`SearchSpace.deciding`, behind them
    the tables, and then the sums of dense weights, if there is a choice.

    A single step is simulated, by itself.
    """

    def __init__(self, model: OperatorTasks, choices: SearchSpace):
        self._model, self._choices = model, choices
        self._simulation = Simulation(model.machine.resources, groups=model.machine.groups)
        self._blocks: Optional[StepTasks] = None
        self._splits: Dict[int, Split] = {}
        self._tables: Dict[str, TablePlan] = {}
        self._first = len(choices.deciding)
        self._last = self._first + len(choices.tables)
        #: What the last proposal has changed, as it was.
        self._before: Tuple[Dict[int, Split], Dict[str, TablePlan]] = {}, {}
        self._is_simulated = False

    @property
    def operators(self) -> int:
        """How many decide, tables and sums included."""
        return self._last + bool(self._choices.sums)

    def candidates(self, operator: int) -> Sequence[Hashable]:
        """Splits that an operator may have, ways of a table's rows, or what may sum."""
        if operator < self._first:
            return self._choices.of(self._choices.deciding[operator])
        if operator < self._last:
            return self._choices.of_table(self._choices.tables[operator - self._first])
        return self._choices.sums

    def neighbours(self, operator: int) -> Sequence[int]:
        """Those just before and behind it, of its kind."""
        kinds = (0, self._first), (self._first, self._last)
        return [one for one in (operator - 1, operator + 1) for first, end in kinds
                if first <= one < end and first <= operator < end]

    def decisions(self, splits: Mapping[int, Split], tables: Optional[Mapping[str, TablePlan]] = None,
                  dense: Optional[str] = None) -> Decisions:
        """Of a whole plan, what those decide who do; of tables of which nothing is said, and of sums, what the store
        would do.
        """
        sums = self._choices.sums
        return tuple(splits[number] for number in self._choices.deciding) + tuple(
            self._model.table_plan(name, tables or {}) for name in self._choices.tables) + (
            (dense if dense in sums else sums[0],) if sums else ())

    def splits(self, decisions: Decisions) -> Dict[int, Split]:
        """Those of the whole plan."""
        return self._choices.complete(dict(zip(self._choices.deciding, decisions)))

    def tables(self, decisions: Decisions) -> Dict[str, TablePlan]:
        """How rows of all tables travel, by the name of the parameter."""
        return dict(zip(self._choices.tables, decisions[self._first:]))

    def dense(self, decisions: Decisions) -> Optional[str]:
        """What sums dense weights; None where there is no choice."""
        return decisions[self._last] if self._choices.sums else None

    def begin(self, assignment: Decisions) -> float:
        """Seconds of a step; proposals depart from here."""
        splits, tables, dense = self.splits(assignment), self.tables(assignment), self.dense(assignment)
        former, self._splits, self._tables = self._splits, splits, dict(tables)
        if self._blocks is None:
            self._blocks = StepTasks(self._model, splits, 1, tables, dense)
            return self._simulation.run(self._blocks.blocks.values())
        changed = {number: split for number, split in splits.items() if split != former[number]}
        blocks = self._blocks.change(changed, tables, None, dense)
        assert blocks is not None
        return self._simulation.change(blocks)

    def propose(self, changes: Mapping[int, Any], limit: Optional[Limit] = None) -> float:
        """Seconds of a step with other splits for some of those who decide; see :class:`~.search_problem.SearchProblem`."""
        assert self._blocks is not None
        first, last = self._first, self._last
        changed = self._choices.follow(self._splits, {self._choices.deciding[at]: split
                                                      for at, split in changes.items() if at < first})
        tables = {self._choices.tables[at - first]: one for at, one in changes.items() if first <= at < last}
        self._before = ({number: self._splits[number] for number in changed},
                        {name: self._tables[name] for name in tables})
        self._splits.update(changed)
        self._tables.update(tables)
        most = np.inf

        def ask() -> float:
            nonlocal most
            most = limit(self.memory()) if limit else np.inf
            return most
        blocks = self._blocks.change(changed, tables, ask, changes.get(last))
        self._is_simulated = blocks is not None
        return self._blocks.least_seconds if blocks is None else self._simulation.change(blocks, most)

    def accept(self) -> None:
        """Proposals depart from the last one."""
        self._before = {}, {}

    def reject(self) -> None:
        """Forget the last one."""
        assert self._blocks is not None
        splits, tables = self._before
        self._splits.update(splits)
        self._tables.update(tables)
        self._blocks.undo()
        if self._is_simulated:
            self._simulation.undo()
        self._before = {}, {}

    def memory(self) -> float:
        """Bytes of the fullest rank."""
        assert self._blocks is not None
        return float(self._blocks.memory.max())


def random_decisions(choices: SearchSpace, draw: Sequence[float]) -> Decisions:
    """Drawn by numbers from 0 to 1, one for each that decides, tables and sums included."""
    candidates: List[Sequence[Hashable]] = [choices.of(number) for number in choices.deciding]
    candidates += [choices.of_table(name) for name in choices.tables] + ([choices.sums] if choices.sums else [])
    return tuple(of[int(one * len(of))] for of, one in zip(candidates, draw))
