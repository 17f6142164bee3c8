"""The interface between a search and the plans that it evaluates; those that no other plan beats in time and memory."""
import bisect
import math
from typing import Callable, Hashable, List, Mapping, NamedTuple, Optional, Protocol, Sequence, Tuple

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


class Point(NamedTuple):
    """A plan, with the bytes of its fullest rank and the seconds of a step."""

    bytes: float
    seconds: float
    assignment: Assignment


class ParetoFront:
    """The best plans so far: each needs less memory than all faster plans."""

    def __init__(self) -> None:
        self._keys: List[Tuple[float, float]] = []
        self._points: List[Point] = []

    def __len__(self) -> int:
        return len(self._points)

    def points(self) -> List[Point]:
        """Return the plans in ascending order of memory, and so in descending order of seconds."""
        return list(self._points)

    def least_seconds(self, size_bytes: float) -> float:
        """Return the seconds of the fastest plan that needs at most this memory; infinite where there is none."""
        index = bisect.bisect_right(self._keys, (size_bytes, math.inf))
        return self._points[index - 1].seconds if index else math.inf

    def add(self, seconds: float, size_bytes: float, assignment: Callable[[], Assignment]) -> None:
        """Add a plan, unless another one is as good in both; `assignment` is called only for a plan that is added."""
        start = bisect.bisect_right(self._keys, (size_bytes, seconds))
        if start and self._points[start - 1].seconds <= seconds:
            return
        end = start
        while end < len(self._points) and self._points[end].seconds >= seconds:
            end += 1
        self._keys[start:end] = [(size_bytes, seconds)]
        self._points[start:end] = [Point(size_bytes, seconds, assignment())]
