"""Whether a process that says nothing computes.

Who holds Python's interpreter lock for long, in a `pickle.loads` or a sort, say, cannot beat meanwhile: the thread that
beats waits for the lock.  The kernel knows that such a process is well: one of its threads takes all the time that it
can get.  A process that is stopped, sleeps or hangs in the kernel takes none.

Anybody can look who runs where the process ids are the same; :mod:`mxhybrid.watchdog.liveness_probe` tell others.
"""
import time
from typing import Any, Dict, Optional

from ..base import proc

#: Seconds of silence after which looks begin: a beat is late.
LATE_HEARTBEAT_S = 1.5
#: Seconds between two looks, at least, for what lies between them to mean something.
SAMPLE_INTERVAL_S = 0.9

#: Of the time between two looks, what a thread that computes has at least of a core, and with its waits for one.
#: Threads that only look for work or for the lock, hundreds of times a second, stay below either.
RUN_SHARE, RUNNABLE_SHARE = 0.04, 0.3

#: Time of a look, the process's state letter, and of each thread the seconds on a core and waiting for one.
ThreadSample = Dict[str, Any]


def sample_threads(pid: int) -> Optional[ThreadSample]:
    """ThreadSample at the threads of a process; None if it is gone."""
    time_s = time.monotonic()
    threads = proc.thread_times(pid)
    return {'time_s': time_s, 'threads': threads} if threads else None


class Activity:
    """Looks at one process, from the time on at which it is late."""

    def __init__(self) -> None:
        self._last: Optional[ThreadSample] = None
        #: Whether it computed between the last two looks; None before there are two.
        self.is_computing: Optional[bool] = None

    def reset(self) -> None:
        """It is not late any more."""
        self._last = self.is_computing = None

    def add_sample(self, now: Optional[ThreadSample]) -> bool:
        """Take a look into account, None where nothing was to be seen; whether it says that the process computes."""
        if now is None:
            return False
        if self._last is None:
            self._last = now
            return False
        seconds = float(now['time_s']) - float(self._last['time_s'])
        if seconds < SAMPLE_INTERVAL_S:
            return False
        self.is_computing = any(
            ran - before[0] >= RUN_SHARE * seconds and ran - before[0] + waited - before[1] >= RUNNABLE_SHARE * seconds
            for (ran, waited), before in ((times, self._last['threads'].get(thread, times))
                                          for thread, times in now['threads'].items()))
        self._last = now
        return self.is_computing


def checked_sample(found: Any) -> Optional[ThreadSample]:
    """A look that another process took; None if it is none."""
    try:
        return {'time_s': float(found['time_s']), 'state': str(found.get('state', '')),
                'threads': {str(thread): [float(ran), float(waited)]
                            for thread, (ran, waited) in found['threads'].items()}}
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
