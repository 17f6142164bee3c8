"""Records of the job monitor about the processes that have joined it."""
from typing import Any, Dict, List, Optional, Tuple

from .activity import Activity, ThreadSample
from .call_log import RecentCalls


class Peer:
    """The record of one process: a worker with its rank, or a server or the scheduler with the rank -1.

    Times are seconds of the monitor's clock; `patience` is the number of seconds of silence before the first warning.
    """

    def __init__(self, name: str, rank: int, now: float, patience: float):
        self.name, self.rank = name, rank
        #: When the process was last heard, and when it was last heard or seen computing.
        self.last_heard = self.last_active = now
        #: The identity of the process, see :mod:`mxhybrid.watchdog.identity`, and the address of its liveness probe.
        self.process: Optional[Dict[str, Any]] = None
        self.probe: List[Any] = []
        #: Its host, and the space in which its process id has a meaning, '' while unknown; that space, and the id.
        self.host = self.pid_space = ''
        self.key: Optional[Tuple[str, int]] = None
        #: For a worker: the number of its collective calls, the last of them, and the location of its script.
        self.calls = 0
        self.call = self.location = ''
        #: Whether the other workers have a reason to wait for it, for example while it writes a checkpoint.
        self.busy = False
        #: The call or array that it waits for, None while it is running; since when that and the number of its calls
        #: are the same; and since when its heartbeats are the same.
        self.waits_for: Optional[str] = None
        self.waits_since = self.still_since = now
        #: The first error that its script got and may have caught, and when; '' for none.
        self.failure = ''
        #: Its last calls, once it has made no new one for a while.
        self.log: Optional[RecentCalls] = None
        #: Whether its script has ended, and whether it has left the job, so that its silence or end means nothing.
        self.has_ended = self.has_left = False
        self._activity = Activity()
        self._missed_since: Optional[float] = None
        #: Seconds of silent computing, and of the other workers' waiting, until the next warning.
        self._busy_patience = patience
        self._missed_patience = 0.0

    @property
    def is_worker(self) -> bool:
        return self.rank >= 0

    def introduce(self, process: Dict[str, Any]) -> Tuple[str, int]:
        """Record the identity of the process, and return its key."""
        key = str(process['pid_space']), int(process['pid'])
        self.host, self.pid_space, self.key, self.process = str(process['host']), key[0], key, process
        return key

    def mark_heard(self, now: float, patience: float) -> None:
        """Record that the process sent something."""
        self.last_heard = self.last_active = now
        self._busy_patience = patience
        self._activity.reset()

    def set_progress(self, calls: int, call: str, location: str, busy: bool, waits_for: Optional[str],
                     now: float) -> None:
        """Record the progress of a worker, from its heartbeat."""
        if (calls, busy) != (self.calls, self.busy):
            self._missed_since = None
        if (calls, waits_for) != (self.calls, self.waits_for):
            self.waits_since = now
        if (calls, busy, location, waits_for) != (self.calls, self.busy, self.location, self.waits_for):
            self.still_since = now
        self.calls, self.call, self.location, self.busy, self.waits_for = calls, call, location, busy, waits_for

    def add_sample(self, now: float, sample: Optional[ThreadSample]) -> None:
        if self._activity.add_sample(sample):
            self.last_active = now

    def needs_busy_warning(self, now: float) -> bool:
        """Return whether to warn, or to warn again, that the process is silent but computes."""
        if now - self.last_heard <= self._busy_patience or not self._activity.is_computing:
            return False
        self._busy_patience = 2 * (now - self.last_heard)
        return True

    def reset_missed(self) -> None:
        """Record that no other worker waits for this one."""
        self._missed_since = None

    def seconds_missed(self, now: float, patience: float) -> float:
        """Return for how long other workers have waited for this one; the first warning is due after `patience` s."""
        if self._missed_since is None:
            self._missed_since, self._missed_patience = now, patience
        return now - self._missed_since

    def needs_missed_warning(self, missed_s: float) -> bool:
        """Return whether to warn, or to warn again, that other workers have waited for this one for `missed_s`."""
        if missed_s <= self._missed_patience:
            return False
        self._missed_patience *= 2
        return True
