"""Worker 0's side of a trace: it sends its clock to all processes, and writes their events to one file."""
import threading
import time
from typing import Any, Dict, Optional, Set

from ..base.log import get_logger
from ..watchdog.monitor import Monitor
from ..watchdog.peers import Peer
from .recorder import now
from .trace_file import TraceFile
from .trace_sender import LAST_EVENTS_S

logger = get_logger(__name__)


class TraceWriter:
    """The writer in worker 0: answers with its time, and writes the events of all processes to the file."""

    def __init__(self, monitor: Monitor, file: TraceFile, num_workers: int):
        self._monitor = monitor
        self._file = file
        self._num_workers = num_workers
        self._origin = now()
        self._pids: Dict[str, int] = {}
        self._traced: Set[str] = set()
        self._finished: Set[str] = set()
        self._deadline: Optional[float] = None
        self._closed = threading.Event()
        self._dropped: Dict[str, int] = {}
        monitor.listen('ping', self._ping)
        monitor.listen('trace', self._trace)
        monitor.listen('no_more_events', self._no_more_events)
        monitor.may_release = self._is_done
        monitor.after_failure = self._close_after_failure

    def _ping(self, peer: Peer, sent: int) -> Dict[str, Any]:
        self._traced.add(peer.name)
        return {'pong': [sent, now(), self._origin]}

    def _trace(self, peer: Peer, batch: Dict[str, Any]) -> None:
        pid = order = peer.rank
        if pid < 0:
            pid = self._pids.setdefault(peer.name, self._num_workers + len(self._pids))
            order = self._num_workers + int(batch['number'])
        name = str(batch['name'])
        self._file.name(pid, name, order)
        self._file.add(pid, batch['events'])

    def _no_more_events(self, peer: Peer, last: Dict[str, Any]) -> None:
        self._dropped[str(last['name'])] = int(last['dropped'])
        self._finished.add(peer.name)

    def _has_last_events(self) -> bool:
        """Return whether all live processes have sent their last events, or the time is over."""
        if self._deadline is None:
            self._deadline = time.monotonic() + LAST_EVENTS_S
        return (time.monotonic() > self._deadline
                or all(peer.name in self._finished for peer in self._monitor.peers() if peer.name in self._traced))

    def _is_done(self) -> bool:
        if self._deadline is None:
            self._monitor.tell({'last_events': True})
        if self._has_last_events():
            self.close()
        return self._closed.is_set()

    def _close_after_failure(self) -> None:
        if not self._closed.is_set() and self._has_last_events():
            self._note(str(self._monitor.failure))
            self.close()

    def _note(self, text: str) -> None:
        """Write an event of the whole job."""
        self._file.add(0, [{'ph': 'i', 's': 'g', 'name': text, 'tid': 0, 'ts': (now() - self._origin) / 1000}])

    def wait(self) -> None:
        """Wait, after a failure, until the file is written; the monitor writes it if it knows of the failure."""
        if self._monitor.failure is None:
            self.close()
        self._closed.wait(LAST_EVENTS_S + 1)

    def close(self) -> None:
        """Write the file, once, and log that."""
        dropped = ['%s dropped %d events beyond its limit' % item for item in sorted(self._dropped.items()) if item[1]]
        for text in dropped:
            self._note(text)
        if self._file.close():
            logger.info('trace: %d events in %s', self._file.count, self._file.path)
            for text in dropped:
                logger.warning('trace: %s', text)
        self._closed.set()
