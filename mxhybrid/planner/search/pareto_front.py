"""The Pareto front of a search: the plans that no other plan beats in time and memory."""
import bisect
import math
from typing import Any, Callable, List, NamedTuple, Tuple

#: A plan as a search has it: the splits of deciding operators in their order, then the route of each table.
Assignment = Tuple[Any, ...]


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
