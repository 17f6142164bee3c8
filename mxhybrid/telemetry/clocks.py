"""The offset to the clock of another process, from round trips of messages.

The other process reads its clock at a time between the sending of the question and the arrival of the answer.  So the
offset lies between two bounds, whose difference is the duration of the round trip (Cristian, Distributed Computing
1989).  The shortest of several round trips gives the closest bounds.
"""
from typing import Optional, Tuple


class ClockOffset:
    """The offset to another clock, all times in nanoseconds."""

    def __init__(self) -> None:
        #: Nanoseconds to add to a time of this process's clock; None before the first :meth:`settle`.
        self.value: Optional[int] = None
        self._best: Optional[Tuple[int, int]] = None

    def sample(self, sent: int, theirs: int, received: int) -> None:
        """Note a round trip: `sent` and `received` are the times of this process's clock, and `theirs` is the time of
        the other clock in between.
        """
        bounds = (theirs - received, theirs - sent)
        if bounds[0] > bounds[1]:
            return
        if self._best is None or bounds[1] - bounds[0] < self._best[1] - self._best[0]:
            self._best = bounds

    def settle(self) -> None:
        """Choose the value from the samples since the last call.

        A value within the bounds stays, so that times do not jitter.  At first this is 0, since the processes of a host
        have one clock.
        """
        if self._best is None:
            return
        low, high = self._best
        current = self.value or 0
        self.value = current if low <= current <= high else (low + high) // 2
        self._best = None
