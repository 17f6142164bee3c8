"""The choice between time and memory: plans of which no other one is better in both."""
import bisect
import math
from typing import Callable, List, NamedTuple, Tuple

from .search_problem import Assignment


class Point(NamedTuple):
    """A plan, what a step takes with it, and what the fullest rank needs."""

    bytes: float
    seconds: float
    assignment: Assignment


class ParetoFront:
    """The best plans seen: each needs less memory than all that are faster."""

    def __init__(self) -> None:
        self._keys: List[Tuple[float, float]] = []
        self._points: List[Point] = []

    def __len__(self) -> int:
        return len(self._points)

    def points(self) -> List[Point]:
        """By memory, the least first; seconds go down."""
        return list(self._points)

    def least_seconds(self, size: float) -> float:
        """Of a plan that needs no more memory than that; infinite where there is none."""
        at = bisect.bisect_right(self._keys, (size, math.inf))
        return self._points[at - 1].seconds if at else math.inf

    def add(self, seconds: float, size: float, assignment: Callable[[], Assignment]) -> None:
        """Keep a plan if none is as good in both; it is asked for only then."""
        at = bisect.bisect_right(self._keys, (size, seconds))
        if at and self._points[at - 1].seconds <= seconds:
            return
        end = at
        while end < len(self._points) and self._points[end].seconds >= seconds:
            end += 1
        self._keys[at:end] = [(size, seconds)]
        self._points[at:end] = [Point(size, seconds, assignment())]
