"""Brings the recorded events of all processes to the one trace file, over the connections that watch the job.

Every process asks rank 0's clock now and then, brings its events to that clock and sends them every few seconds:
so little is lost with a process that is killed, no memory fills, and clocks that drift stay corrected.  The last
ones are sent when the monitor asks for them before all leave, or when the job fails.
"""
import threading
import time
from typing import Any, Dict, List, Optional, Set

from .clocks import Offset
from .lifeline import Lifeline
from .log import get_logger
from .monitor import Monitor
from .trace import Recorder, in_microseconds, now
from .tracefile import TraceFile

logger = get_logger(__name__)

#: Seconds between two deliveries.
INTERVAL_S = 1.0

#: Round trips to rank 0's clock, of which the shortest counts: at the start, and before each delivery.
FIRST_ROUND_TRIPS = 8
ROUND_TRIPS = 3

#: Events in one message.
BATCH = 500

#: Seconds that the end of a job waits for the last events.
LAST_EVENTS_S = 2.0


class Courier:
    """In every process: sends what `recorder` recorded over `lifeline`."""

    def __init__(self, recorder: Recorder, lifeline: Lifeline):
        self._recorder = recorder
        self._lifeline = lifeline
        self._offset = Offset()
        self._origin = 0
        self._trips = 0
        self._delivered = time.monotonic()
        self._lock = threading.Lock()
        lifeline.listen('pong', self._pong)
        lifeline.listen('last_events', lambda _: self.finish())
        lifeline.on_tick = self._tick
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
        """Called about every second by the thread of the lifeline."""
        if time.monotonic() - self._delivered > INTERVAL_S:
            self.deliver()
            self._ask_clock(ROUND_TRIPS)
            self._delivered = time.monotonic()

    def deliver(self) -> None:
        """Send all events recorded so far, unless rank 0's clock is not known yet."""
        if self._offset.value is None or not self._lock.acquire(timeout=LAST_EVENTS_S):
            return
        try:
            recorder = self._recorder
            for _ in range(0, len(recorder), BATCH):
                events = in_microseconds(recorder.take(BATCH), self._offset.value - self._origin)
                self._lifeline.send({'trace': {'name': recorder.name, 'place': recorder.place, 'events': events}})
        finally:
            self._lock.release()

    def finish(self) -> None:
        """Send all events and say that no more come."""
        self.deliver()
        self._lifeline.send({'no_more_events': {'name': self._recorder.name, 'dropped': self._recorder.dropped}})


class Collector:
    """In rank 0: answers with the time, writes the events of all processes to the file.

    Parameters
    ----------
    monitor : Monitor
    file : TraceFile
    num_workers : int
    """

    def __init__(self, monitor: Monitor, file: TraceFile, num_workers: int):
        self._monitor = monitor
        self._file = file
        self._num_workers = num_workers
        self._origin = now()
        self._pids: Dict[str, int] = {}
        self._finished: Set[str] = set()
        self._deadline: Optional[float] = None
        self._closed = threading.Event()
        self._dropped: Dict[str, int] = {}
        monitor.listen('ping', self._ping)
        monitor.listen('trace', self._trace)
        monitor.listen('no_more_events', self._no_more_events)
        monitor.may_end = self._may_end
        monitor.after_failure = self._after_failure

    def _ping(self, who: Dict[str, Any], sent: int) -> Dict[str, Any]:
        who['traced'] = True
        return {'pong': [sent, now(), self._origin]}

    def _trace(self, who: Dict[str, Any], batch: Dict[str, Any]) -> None:
        pid = order = who['rank']
        if pid < 0:
            pid = self._pids.setdefault(who['name'], self._num_workers + len(self._pids))
            order = self._num_workers + int(batch['place'])
        name = str(batch['name'])
        self._file.name(pid, name, order)
        self._file.add(pid, batch['events'])

    def _no_more_events(self, who: Dict[str, Any], last: Dict[str, Any]) -> None:
        self._dropped[str(last['name'])] = int(last['dropped'])
        self._finished.add(who['name'])

    def _all_came(self) -> bool:
        """Whether all that still live have sent their last events, or time is up."""
        if self._deadline is None:
            self._deadline = time.monotonic() + LAST_EVENTS_S
        return (time.monotonic() > self._deadline
                or all(who['name'] in self._finished for who in self._monitor.peers() if who.get('traced')))

    def _may_end(self) -> bool:
        if self._deadline is None:
            self._monitor.tell({'last_events': True})
        if self._all_came():
            self.close()
        return self._closed.is_set()

    def _after_failure(self) -> None:
        if not self._closed.is_set() and self._all_came():
            self._file.add(0, [{'ph': 'i', 's': 'g', 'name': str(self._monitor.failure), 'tid': 0,
                                'ts': (now() - self._origin) / 1000}])
            self.close()

    def wait(self) -> None:
        """After a failure, wait until the monitor, if it knows of it, has written the file."""
        if self._monitor.failure is None:
            self.close()
        self._closed.wait(LAST_EVENTS_S + 1)

    def close(self) -> None:
        """Write the file, once, and say so."""
        dropped = ['%s dropped %d events beyond its limit' % item for item in sorted(self._dropped.items()) if item[1]]
        self._file.add(0, [{'ph': 'i', 's': 'g', 'name': text, 'tid': 0, 'ts': (now() - self._origin) / 1000}
                           for text in dropped])
        if self._file.close():
            logger.info('trace: %d events in %s', self._file.count, self._file.path)
            for text in dropped:
                logger.warning('trace: %s', text)
        self._closed.set()
