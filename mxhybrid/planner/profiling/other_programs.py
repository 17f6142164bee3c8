"""Notices other programs that compute on this machine while something is timed here.

They slow down what is timed by the processors, the caches and the memory that they share with it, so that even its CPU
time is too long.
"""
import os
import time
from typing import Callable, Iterable, Optional

#: Where other programs have a larger share of the processors, the machine is busy.  Daemons and threads that poll, as
#: Horovod's do, have less.
BUSY_SHARE = 0.1

#: Columns of /proc/stat, behind the name, in which a processor works for a program: user, nice, system, and steal,
#: which is time of other virtual machines.  What the kernel does for the network by itself is nobody's.
_WORKING = (0, 1, 2, 7)


def processor_seconds(processors: Iterable[int], root: str = '/') -> Optional[float]:
    """Return the seconds that some processors have worked since the machine started, for anybody.

    Parameters
    ----------
    processors : iterable of int
        Their numbers.
    root : str, optional
        The folder that has /proc.

    Returns
    -------
    float or None
        None where the kernel does not say it.
    """
    names = {'cpu%d' % number for number in processors}
    ticks = 0
    try:
        with open(os.path.join(root, 'proc/stat'), encoding='ascii') as lines:
            for line in lines:
                name, *columns = line.split() or ['']
                if name in names:
                    names.discard(name)
                    ticks += sum(int(columns[at]) for at in _WORKING)
    except (OSError, ValueError, IndexError):
        return None
    return None if names else ticks / os.sysconf('SC_CLK_TCK')


class OtherPrograms:
    """The share of this process's processors that other programs have, since this object was made.

    Parameters
    ----------
    own : callable, optional
        CPU seconds of what is timed; by default those of this process.
    root : str, optional
        The folder that has /proc.
    """

    def __init__(self, own: Callable[[], float] = time.process_time, root: str = '/'):
        self._own, self._root = own, root
        self._processors = sorted(os.sched_getaffinity(0))
        self._began, self._mine, self._all = time.perf_counter(), own(), self._worked()

    def _worked(self) -> Optional[float]:
        return processor_seconds(self._processors, self._root)

    def share(self) -> float:
        """Return a number from 0 to 1; 0 where the kernel does not say what processors do."""
        worked = self._worked()
        elapsed = (time.perf_counter() - self._began) * len(self._processors)
        if worked is None or self._all is None or elapsed <= 0:
            return 0.0
        return min(1.0, max(0.0, (worked - self._all) - (self._own() - self._mine)) / elapsed)
