"""The seconds that a calibration may take, shared out over its parts, which follow one another."""
import time
from typing import Callable, Dict, Mapping


class TimeBudget:
    """A time budget: later parts get the time that an earlier part does not use.

    - `seconds`: the time for all parts, from now on.
    - `shares`: the share of each part, in their order; relative to the sum of all shares.
    """

    def __init__(self, seconds: float, shares: Mapping[str, float], clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._ends: Dict[str, float] = {}
        self._began = end = clock()
        for part, share in shares.items():
            end += seconds * share / sum(shares.values())
            self._ends[part] = end
        self._end, self._measurements_left = self._began, 1

    @property
    def elapsed(self) -> float:
        """The seconds since the budget began."""
        return self._clock() - self._began

    @property
    def left(self) -> float:
        """The seconds until the end of the current part; negative after it."""
        return self._end - self._clock()

    def begin(self, part: str, measurements: int) -> None:
        """Begin a part with this number of measurements."""
        self._end, self._measurements_left = self._ends[part], max(1, measurements)

    def next_seconds(self) -> float:
        """Return the seconds that the next measurement may take; 0 if the time is up."""
        seconds = max(0.0, self.left) / self._measurements_left
        self._measurements_left = max(1, self._measurements_left - 1)
        return seconds
