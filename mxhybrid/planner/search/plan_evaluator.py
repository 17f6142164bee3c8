"""The evaluation of plans by simulation, for a search."""
from typing import Any, Callable, Dict, Hashable, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from ...base.settings import TablePlan
from ...parallel.sharding.split import Split
from ..simulator.simulation import Simulation
from ..task_graph.operator_tasks import OperatorTasks
from ..task_graph.step_tasks import StepTasks
from .pareto_front import Assignment
from .search_space import SearchSpace


class PlanEvaluator:
    """Simulates a single step, by itself, for proposals of a search.

    A proposal consists of some changes to the assignment of the last :meth:`begin` or :meth:`accept`; it is accepted or
    rejected before the next one.  The operators are those of :attr:`SearchSpace.deciding`, then the tables.
    """

    def __init__(self, model: OperatorTasks, space: SearchSpace):
        self._model, self._space = model, space
        self._simulation = Simulation(model.machine.resources, groups=model.machine.groups)
        self._step_tasks: StepTasks
        self._splits: Dict[int, Split] = {}
        self._tables: Dict[str, TablePlan] = {}
        self._first_table = len(space.deciding)
        self._group_of = {operator: group for group in space.groups for operator in group}
        #: The splits and tables that the last proposal has changed, as they were before.
        self._before: Tuple[Dict[int, Split], Dict[str, TablePlan]] = {}, {}
        self._is_simulated = False

    @property
    def operators(self) -> int:
        """The number of decisions."""
        return self._first_table + len(self._space.tables)

    def candidates(self, operator: int) -> Sequence[Hashable]:
        """Return the splits of an operator, or the routes of a table."""
        if operator < self._first_table:
            return self._space.candidates(self._space.deciding[operator])
        return self._space.table_candidates(self._space.tables[operator - self._first_table])

    def neighbours(self, operator: int) -> Sequence[int]:
        """Return the decisions just before and after one of the same kind."""
        kinds = (0, self._first_table), (self._first_table, self.operators)
        return [neighbour for neighbour in (operator - 1, operator + 1) for first, end in kinds
                if first <= neighbour < end and first <= operator < end]

    def alike(self, operator: int) -> Sequence[int]:
        """Return the operators that are the same in repeated blocks, the operator itself included."""
        return self._group_of.get(operator, (operator,))

    def decisions(self, splits: Mapping[int, Split], tables: Optional[Mapping[str, TablePlan]] = None) -> Assignment:
        """Return the decisions of a whole plan; tables that it leaves open are as the store chooses."""
        return tuple(splits[number] for number in self._space.deciding) + tuple(
            self._model.weights.table_plan(name, tables or {}) for name in self._space.tables)

    def splits(self, decisions: Assignment) -> Dict[int, Split]:
        """Return the splits of the whole plan."""
        return self._space.complete(dict(zip(self._space.deciding, decisions)))

    def tables(self, decisions: Assignment) -> Dict[str, TablePlan]:
        """Return the routes of all tables, by the names of their parameters."""
        return dict(zip(self._space.tables, decisions[self._first_table:]))

    def begin(self, assignment: Assignment) -> float:
        """Begin at a plan; return the seconds of a step."""
        splits, tables = self.splits(assignment), self.tables(assignment)
        former, self._splits, self._tables = self._splits, splits, dict(tables)
        if not former:
            self._step_tasks = StepTasks(self._model, splits, 1, tables)
            return self._simulation.run(self._step_tasks.blocks.values())
        changed = {number: split for number, split in splits.items() if split != former[number]}
        blocks = self._step_tasks.propose(changed, tables)
        assert blocks is not None
        return self._simulation.propose(blocks)

    def propose(self, changes: Mapping[int, Any], limit: Optional[Callable[[float], float]] = None) -> float:
        """Propose other choices for some operators; return the seconds of a step.

        - `limit`: returns the largest seconds of interest, given the bytes of the fullest rank.  For a step that takes
          longer, the result may be any number between the limit and the time of the step.
        """
        first_table = self._first_table
        changed = self._space.propagate(self._splits, {self._space.deciding[index]: split
                                                       for index, split in changes.items() if index < first_table})
        tables = {self._space.tables[index - first_table]: plan for index, plan in changes.items()
                  if index >= first_table}
        self._before = ({number: self._splits[number] for number in changed},
                        {name: self._tables[name] for name in tables})
        self._splits.update(changed)
        self._tables.update(tables)
        most_seconds = np.inf

        def ask_limit() -> float:
            nonlocal most_seconds
            most_seconds = limit(self.memory()) if limit else np.inf
            return most_seconds
        blocks = self._step_tasks.propose(changed, tables, ask_limit)
        self._is_simulated = blocks is not None
        return self._step_tasks.least_seconds if blocks is None else self._simulation.propose(blocks, most_seconds)

    def accept(self) -> None:
        """Accept the last proposal: the next one departs from it."""

    def reject(self) -> None:
        """Reject the last proposal."""
        splits, tables = self._before
        self._splits.update(splits)
        self._tables.update(tables)
        self._step_tasks.rollback()
        if self._is_simulated:
            self._simulation.rollback()

    def memory(self) -> float:
        """Return the bytes of the fullest rank, after the last :meth:`begin` or :meth:`propose`."""
        return float(self._step_tasks.memory.max())


def random_decisions(space: SearchSpace, draws: Sequence[float]) -> Assignment:
    """Return the decisions that random numbers from 0 to 1 choose, one number for each decision."""
    candidates: List[Sequence[Hashable]] = [space.candidates(number) for number in space.deciding]
    candidates += [space.table_candidates(name) for name in space.tables]
    return tuple(choices[int(draw * len(choices))] for choices, draw in zip(candidates, draws))
