"""Seconds that a calibration may take, shared out over what it measures one after the other."""
import time
from typing import Callable, Dict, Mapping


class TimeBudget:
    """What a part leaves over is for those behind it.

    Parameters
    ----------
    seconds : float
        Of all parts, from now on.
    shares : mapping of str to float
        Of each part, in their order; as shares of their sum.
    clock : callable, optional
    """

    def __init__(self, seconds: float, shares: Mapping[str, float], clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._ends: Dict[str, float] = {}
        self._began = end = clock()
        for part, share in shares.items():
            end += seconds * share / sum(shares.values())
            self._ends[part] = end
        self._end, self._left = self._began, 1

    @property
    def elapsed(self) -> float:
        """Seconds since the begin."""
        return self._clock() - self._began

    @property
    def left(self) -> float:
        """Seconds until the part's end; less than 0 behind it."""
        return self._end - self._clock()

    def begin(self, part: str, measurements: int) -> None:
        """This part is next, and has so many measurements."""
        self._end, self._left = self._ends[part], max(1, measurements)

    def next_seconds(self) -> float:
        """What the next measurement may take; 0 where time is up."""
        found = max(0.0, self.left) / self._left
        self._left = max(1, self._left - 1)
        return found
