"""What a search asks of a plan that is put together from choices."""
from typing import Callable, Hashable, Mapping, Optional, Protocol, Sequence, Tuple

#: Of each operator, by its number, what was chosen.
Assignment = Tuple[Hashable, ...]

#: The seconds that are of interest with so many bytes of the fullest rank.
Limit = Callable[[float], float]


class SearchProblem(Protocol):
    """Operators, numbered from 0, with choices for each, and what a step takes with a choice for all of them.

    A proposal is what came with the last :meth:`begin` or :meth:`accept`, and some changes; it is accepted or rejected
    before the next one.
    """

    @property
    def operators(self) -> int:
        """How many there are."""

    def candidates(self, operator: int) -> Sequence[Hashable]:
        """Choices of an operator, at least one.  Those of several operators that mean the same are equal."""

    def neighbours(self, operator: int) -> Sequence[int]:
        """Operators that it reads, or that read it."""

    def begin(self, assignment: Assignment) -> float:
        """Seconds of a step with these choices, from which proposals depart."""

    def propose(self, changes: Mapping[int, Hashable], limit: Optional[Limit] = None) -> float:
        """Seconds of a step with other choices for some operators.

        Of what is beyond the limit it suffices that it is: any number above it, and no more than those seconds.
        """

    def accept(self) -> None:
        """Proposals depart from the last one."""

    def reject(self) -> None:
        """Forget the last one."""

    def memory(self) -> float:
        """Bytes that the fullest rank needs, with what was begun or proposed last."""
