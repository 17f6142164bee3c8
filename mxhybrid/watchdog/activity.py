"""Whether a process that says nothing computes.

Who holds Python's interpreter lock for long, in a `pickle.loads` or a sort, say, cannot beat meanwhile: the thread that
beats waits for the lock.  The kernel knows that such a process is well: one of its threads takes all the time that it
can get.  A process that is stopped, sleeps or hangs in the kernel takes none.

Anybody can look who runs where the process ids are the same; :mod:`mxhybrid.watchdog.liveness_probe` tell others.
"""
import contextlib
import os
import time
from typing import Any, Dict, List, Optional

#: Seconds of silence after which looks begin: a beat is late.
LATE_S = 1.5
#: Seconds between two looks, at least, for what lies between them to mean something.
BETWEEN_LOOKS_S = 0.9

#: Of the time between two looks, what a thread that computes has at least of a core, and with its waits for one.
#: Threads that only look for work or for the lock, hundreds of times a second, stay below either.
CORE_SHARE, WANTED_SHARE = 0.04, 0.3

_TICK_S = 1.0 / os.sysconf('SC_CLK_TCK')
#: Time of a look, the process's state letter, and of each thread the seconds on a core and waiting for one.
Look = Dict[str, Any]


def look_at_threads(pid: int) -> Optional[Look]:
    """Look at the threads of a process; None if it is gone."""
    at, threads = time.monotonic(), {}
    with contextlib.suppress(OSError):
        for thread in os.listdir('/proc/%d/task' % pid):
            with contextlib.suppress(OSError, ValueError, IndexError):
                threads[thread] = _times('/proc/%d/task/%s/' % (pid, thread))
    return {'at': at, 'threads': threads} if threads else None


def _times(directory: str) -> List[float]:
    try:
        with open(directory + 'schedstat') as file:
            ran, waited = file.read().split()[:2]
        return [int(ran) / 1e9, int(waited) / 1e9]
    except FileNotFoundError:  # a kernel without scheduler statistics: as if it waited all the time
        with open(directory + 'stat') as file:
            values = file.read().rpartition(')')[2].split()
        return [(int(values[11]) + int(values[12])) * _TICK_S, time.monotonic()]


class Activity:
    """Looks at one process, from the time on at which it is late."""

    def __init__(self) -> None:
        self._last: Optional[Look] = None
        #: Whether it computed between the last two looks; None before there are two.
        self.computes: Optional[bool] = None

    def forget(self) -> None:
        """It is not late any more."""
        self._last = self.computes = None

    def take(self, now: Optional[Look]) -> bool:
        """Take a look into account, None where nothing was to be seen; whether it says that the process computes."""
        if now is None:
            return False
        if self._last is None:
            self._last = now
            return False
        seconds = float(now['at']) - float(self._last['at'])
        if seconds < BETWEEN_LOOKS_S:
            return False
        self.computes = any(
            ran - before[0] >= CORE_SHARE * seconds and ran - before[0] + waited - before[1] >= WANTED_SHARE * seconds
            for (ran, waited), before in ((times, self._last['threads'].get(thread, times))
                                          for thread, times in now['threads'].items()))
        self._last = now
        return self.computes


def checked_look(found: Any) -> Optional[Look]:
    """A look that another process took; None if it is none."""
    try:
        return {'at': float(found['at']), 'state': str(found.get('state', '')),
                'threads': {str(thread): [float(ran), float(waited)]
                            for thread, (ran, waited) in found['threads'].items()}}
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
