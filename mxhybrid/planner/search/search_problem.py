"""The interface between a search and the plans that it evaluates."""
from typing import Callable, Hashable, Mapping, Optional, Protocol, Sequence, Tuple

#: The choice of each operator, by its number.
Assignment = Tuple[Hashable, ...]

#: Returns the largest seconds of interest, given the bytes of the fullest rank.
Limit = Callable[[float], float]


class SearchProblem(Protocol):
    """Operators, numbered from 0, with choices for each; and the time of a step with a choice for all of them.

    A proposal consists of some changes to the assignment of the last :meth:`begin` or :meth:`accept`; it is accepted or
    rejected before the next one.
    """

    @property
    def operators(self) -> int:
        """The number of operators."""

    def candidates(self, operator: int) -> Sequence[Hashable]:
        """Return the choices of an operator, at least one; choices of two operators are equal if they mean the same."""

    def neighbours(self, operator: int) -> Sequence[int]:
        """Return the operators that an operator reads, or that read it."""

    def alike(self, operator: int) -> Sequence[int]:
        """Return the operators that are the same in repeated blocks of the network, the operator itself included."""

    def begin(self, assignment: Assignment) -> float:
        """Begin at an assignment; return the seconds of a step."""

    def propose(self, changes: Mapping[int, Hashable], limit: Optional[Limit] = None) -> float:
        """Propose other choices for some operators; return the seconds of a step.

        For a step that takes longer than the limit, the result may be any number between the limit and the time of the
        step.
        """

    def accept(self) -> None:
        """Accept the last proposal: the next one departs from it."""

    def reject(self) -> None:
        """Reject the last proposal."""

    def memory(self) -> float:
        """Return the bytes of the fullest rank, after the last :meth:`begin` or :meth:`propose`."""
