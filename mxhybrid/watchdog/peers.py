"""What the job monitor knows of each process that has joined it."""
from typing import Any, Dict, List, Optional, Tuple

from .activity import Activity, ThreadSample
from .call_log import RecentCalls


class Peer:
    """One process: a worker by its rank, or a server or the scheduler with the rank -1.  Times are seconds of the
    monitor's clock; `patience` is after how many of silence a warning is due.
    """

    def __init__(self, name: str, rank: int, now: float, patience: float):
        self.name, self.rank = name, rank
        #: When it was heard, and when it was last heard or seen computing.
        self.last_heard = self.last_active = now
        #: Who it is, see :mod:`mxhybrid.watchdog.identity`, and where it tells others what the monitor's process does.
        self.process: Optional[Dict[str, Any]] = None
        self.probe: List[Any] = []
        #: Of a worker: how many calls that need everybody it has made, the last of them, and where its script is.
        self.calls = 0
        self.call = self.location = ''
        #: Whether the others wait for it with good reason, while it writes a checkpoint, say.
        self.busy = False
        #: Name of the call in which it has waited for long.
        self.waiting: Optional[str] = None
        #: What it waits for, as its beats say, None while it goes on; and since when its beats say the same.
        self.waits_for: Optional[str] = None
        self.still_since = now
        #: Its last calls, once it has stood still for a moment.
        self.log: Optional[RecentCalls] = None
        #: Whether its script has ended, and whether it has left, so that its silence or end says nothing new.
        self.has_ended = self.has_left = False
        self._activity = Activity()
        self._missed_since: Optional[float] = None
        #: How long it computes in silence, and the others wait for it, until the next warning.
        self._quiet_patience = patience
        self._missed_patience = 0.0

    @property
    def is_worker(self) -> bool:
        return self.rank >= 0

    @property
    def host(self) -> str:
        """Name of its host."""
        return '' if self.process is None else str(self.process['host'])

    @property
    def pid_space(self) -> str:
        """Where its process id has a meaning; empty while that is not known."""
        return '' if self.process is None else str(self.process['pid_space'])

    @property
    def key(self) -> Optional[Tuple[str, int]]:
        """Space of process ids and its own."""
        return None if self.process is None else (self.pid_space, int(self.process['pid']))

    def mark_heard(self, now: float, patience: float) -> None:
        """It has said something."""
        self.last_heard = self.last_active = now
        self._quiet_patience = patience
        self._activity.reset()

    def set_process(self, process: Dict[str, Any]) -> None:
        """It has said who it is."""
        self.process = dict(process)

    def set_probe(self, address: List[Any]) -> None:
        """It tells others what the monitor's process does."""
        self.probe = list(address)

    def set_progress(self, calls: int, call: str, location: str, busy: bool, waits_for: Optional[str], now: float) -> None:
        """It has said what it has done and where it is."""
        if (calls, busy) != (self.calls, self.busy):
            self._missed_since = None
        if (calls, busy, location, waits_for) != (self.calls, self.busy, self.location, self.waits_for):
            self.still_since = now
        self.calls, self.call, self.location, self.busy, self.waits_for = calls, call, location, busy, waits_for

    def set_log(self, log: RecentCalls) -> None:
        """It has said what its last calls were."""
        self.log = log

    def set_waiting(self, call: Optional[str]) -> None:
        """It has waited for long in a call that needs everybody, or does not any more."""
        self.waiting = call

    def mark_ended(self) -> None:
        """Its script has ended."""
        self.has_ended = True

    def mark_left(self) -> None:
        """It has said its last."""
        self.has_left = True

    def add_sample(self, now: float, look: Optional[ThreadSample]) -> None:
        """Somebody had a look at it."""
        if self._activity.add_sample(look):
            self.last_active = now

    def needs_busy_warning(self, now: float) -> bool:
        """Whether it is time, again, to say that it is silent and computes."""
        if now - self.last_heard <= self._quiet_patience or not self._activity.is_computing:
            return False
        self._quiet_patience = 2 * (now - self.last_heard)
        return True

    def reset_missed(self) -> None:
        """The others do not wait for it."""
        self._missed_since = None

    def seconds_missed(self, now: float, patience: float) -> float:
        """For how many seconds the others have waited for it; `patience` is how long until the first warning."""
        if self._missed_since is None:
            self._missed_since, self._missed_patience = now, patience
        return now - self._missed_since

    def needs_missed_warning(self, missed: float) -> bool:
        """Whether it is time, again, to say that it has been missed for so many seconds."""
        if missed <= self._missed_patience:
            return False
        self._missed_patience *= 2
        return True
