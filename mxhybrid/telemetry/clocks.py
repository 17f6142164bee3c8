"""How far another process's clock is ahead, from messages that go there and back.

Who answers reads its clock at some time between the sending of the question and the arrival of the answer, so
that the offset lies between two bounds that a round trip's duration apart (Cristian, Distributed Computing 1989).
The shortest of several round trips bounds it best.
"""
from typing import Optional, Tuple


class ClockOffset:
    """The offset to another clock, all times in nanoseconds."""

    def __init__(self) -> None:
        #: What to add to a time of this process's clock; None before the first :meth:`settle`.
        self.value: Optional[int] = None
        self._best: Optional[Tuple[int, int]] = None

    def sample(self, sent: int, theirs: int, received: int) -> None:
        """Take one round trip into account: the question left and the answer came when this process's clock said
        `sent` and `received`, and the other clock said `theirs` in between."""
        bounds = (theirs - received, theirs - sent)
        if bounds[0] > bounds[1]:
            return
        if self._best is None or bounds[1] - bounds[0] < self._best[1] - self._best[0]:
            self._best = bounds

    def settle(self) -> None:
        """Conclude from the samples since the last call.

        A value that is still possible stays, so that times do not jitter; before the first one that is 0: processes
        of one host have one clock.
        """
        if self._best is None:
            return
        low, high = self._best
        current = self.value or 0
        self.value = current if low <= current <= high else (low + high) // 2
        self._best = None
