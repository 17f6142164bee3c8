"""The splits of a network's operators, as a search sees them."""
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..parallel.split import Split
from .choices import Choices
from .simulator import Simulation
from .step_blocks import StepBlocks
from .step_model import StepModel

#: As a search has it: splits of operators that decide, in their order.
Decisions = Tuple[Any, ...]


class PlanProblem:
    """A :class:`mxhybrid.planner.problem.Problem`, whose operators are those of :attr:`Choices.deciding`.

    A single step is simulated, by itself.
    """

    def __init__(self, model: StepModel, choices: Choices):
        self._model, self._choices = model, choices
        self._simulation = Simulation(model.machine.resources)
        self._blocks: Optional[StepBlocks] = None
        self._splits: Dict[int, Split] = {}
        self._before: Dict[int, Split] = {}

    @property
    def operators(self) -> int:
        """How many decide."""
        return len(self._choices.deciding)

    def candidates(self, operator: int) -> Sequence[Split]:
        """Splits that an operator may have."""
        return self._choices.of(self._choices.deciding[operator])

    def neighbours(self, operator: int) -> Sequence[int]:
        """Those just before and behind it."""
        return [one for one in (operator - 1, operator + 1) if 0 <= one < self.operators]

    def decisions(self, splits: Mapping[int, Split]) -> Decisions:
        """Of a whole plan, what those decide who do."""
        return tuple(splits[number] for number in self._choices.deciding)

    def splits(self, decisions: Decisions) -> Dict[int, Split]:
        """The whole plan."""
        return self._choices.follow({}, dict(zip(self._choices.deciding, decisions)))

    def begin(self, assignment: Decisions) -> float:
        """Seconds of a step; proposals depart from here."""
        splits = self.splits(assignment)
        if self._blocks is None:
            self._blocks = StepBlocks(self._model, splits, 1)
            self._splits = splits
            return self._simulation.run(self._blocks.blocks.values())
        changed = {number: split for number, split in splits.items() if split != self._splits[number]}
        self._splits = splits
        return self._simulation.change(self._blocks.change(changed))

    def propose(self, changes: Mapping[int, Any]) -> float:
        """Seconds of a step with other splits for some of those who decide."""
        assert self._blocks is not None
        changed = self._choices.follow(self._splits, {self._choices.deciding[at]: split
                                                      for at, split in changes.items()})
        self._before = {number: self._splits[number] for number in changed}
        self._splits.update(changed)
        return self._simulation.change(self._blocks.change(changed))

    def accept(self) -> None:
        """Proposals depart from the last one."""
        self._before = {}

    def reject(self) -> None:
        """Forget the last one."""
        assert self._blocks is not None
        self._splits.update(self._before)
        self._blocks.undo()
        self._simulation.undo()
        self._before = {}

    def memory(self) -> float:
        """Bytes of the fullest rank."""
        assert self._blocks is not None
        return float(self._blocks.memory.max())


def random_decisions(choices: Choices, draw: Sequence[float]) -> Decisions:
    """Splits drawn by numbers from 0 to 1, one for each that decides."""
    found: List[Split] = []
    for number, one in zip(choices.deciding, draw):
        candidates = choices.of(number)
        found.append(candidates[int(one * len(candidates))])
    return tuple(found)
