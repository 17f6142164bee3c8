"""Sends the events of a process to the trace file in worker 0, over the connections of the job monitor.

Every process measures its offset to worker 0's clock repeatedly, converts its events to that clock, and sends them
about once a second.  So a process that is killed loses few events, memory does not fill, and a drift of clocks is
corrected.  The last events are sent when the monitor asks for them before all processes leave, or when the job fails.
"""
import threading
import time
from typing import List, Optional, Tuple

from ..watchdog.lifeline import Lifeline
from .recorder import Recorder, in_microseconds, now

#: Seconds between two deliveries.
INTERVAL_S = 1.0
#: Numbers of round trips to worker 0's clock, of which the shortest counts: at the start, and before each delivery.
FIRST_ROUND_TRIPS = 8
ROUND_TRIPS = 3
#: Largest number of events in a message.
BATCH = 500
#: Seconds that the end of a job waits for the last events.
LAST_EVENTS_S = 2.0


class ClockOffset:
    """The offset to the clock of another process, from round trips of messages; all times in nanoseconds.

    The other process reads its clock at a time between the sending of the question and the arrival of the answer.  So
    the offset lies between two bounds, whose difference is the duration of the round trip (Cristian, Distributed
    Computing 1989).  The shortest of several round trips gives the closest bounds.
    """

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


class TraceSender:
    """The sender in every process: sends the events of `recorder` over `lifeline`."""

    def __init__(self, recorder: Recorder, lifeline: Lifeline):
        self._recorder = recorder
        self._lifeline = lifeline
        self._offset = ClockOffset()
        self._origin = 0
        self._trips = 0
        self._delivered = time.monotonic()
        self._lock = threading.Lock()
        lifeline.listen('pong', self._pong)
        lifeline.listen('last_events', lambda _: self.finish())
        lifeline.every_second = self._tick
        lifeline.before_leaving = self.finish
        self._ask_clock(FIRST_ROUND_TRIPS)

    def _ask_clock(self, trips: int) -> None:
        self._trips = trips
        self._lifeline.send({'ping': now()})

    def _pong(self, answer: List[int]) -> None:
        sent, theirs, self._origin = answer
        self._offset.sample(sent, theirs, now())
        self._trips -= 1
        if self._trips > 0:
            self._lifeline.send({'ping': now()})
        else:
            self._offset.settle()

    def _tick(self) -> None:
        """Send events if it is time; the thread of the lifeline calls this about every second."""
        if time.monotonic() - self._delivered > INTERVAL_S:
            self.deliver()
            self._ask_clock(ROUND_TRIPS)
            self._delivered = time.monotonic()

    def deliver(self) -> None:
        """Send all events so far, if any question about worker 0's clock has been answered."""
        if self._offset.value is None:
            self._offset.settle()  # fewer round trips than planned: the job fails early, or the machine is busy
        if self._offset.value is None or not self._lock.acquire(timeout=LAST_EVENTS_S):
            return
        try:
            recorder = self._recorder
            for _ in range(0, len(recorder), BATCH):
                events = in_microseconds(recorder.take(BATCH), self._offset.value - self._origin)
                self._lifeline.send({'trace': {'name': recorder.name, 'number': recorder.number, 'events': events}})
        finally:
            self._lock.release()

    def finish(self) -> None:
        """Send all events, and a message that no more follow."""
        self.deliver()
        self._lifeline.send({'no_more_events': {'name': self._recorder.name, 'dropped': self._recorder.dropped}})
