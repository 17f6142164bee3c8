"""Detects other programs that compute on this machine while something is timed here.

They slow down what is timed, because they share processors, caches and memory with it; even its CPU time is too long.
"""
import functools
import os
import time
from typing import Callable, Iterable, Optional

#: The machine is busy if other programs have a larger share of the processors.  Daemons and threads that poll, as
#: Horovod's do, have less.
BUSY_SHARE = 0.1

#: Columns of /proc/stat, after the name, in which a processor works for a program: user, nice, system, and steal,
#: which is the time of other virtual machines.  Interrupts, as for the network, belong to no program.
_WORKING = (0, 1, 2, 7)


def processor_seconds(processors: Iterable[int], root: str = '/') -> Optional[float]:
    """Return the seconds that some processors have worked since the machine started; None if the kernel does not tell.

    - `processors`: their numbers.
    - `root`: the folder that has /proc.
    """
    names = {'cpu%d' % number for number in processors}
    ticks = 0
    try:
        with open(os.path.join(root, 'proc/stat'), encoding='ascii') as lines:
            for line in lines:
                name, *columns = line.split() or ['']
                if name in names:
                    names.discard(name)
                    ticks += sum(int(columns[column]) for column in _WORKING)
    except (OSError, ValueError, IndexError):
        return None
    return None if names else ticks / os.sysconf('SC_CLK_TCK')


class OtherPrograms:
    """The share of this process's processors that other programs have used since this object was created.

    - `own_seconds`: returns the CPU seconds of the timed programs; by default of this process.
    - `root`: the folder that has /proc.
    """

    def __init__(self, own_seconds: Callable[[], float] = time.process_time, root: str = '/'):
        self._own_seconds, self._processors = own_seconds, sorted(os.sched_getaffinity(0))
        self._worked = functools.partial(processor_seconds, self._processors, root)
        self._began, self._own_before, self._all_before = time.perf_counter(), own_seconds(), self._worked()

    def share(self) -> float:
        """Return a number from 0 to 1; 0 if the kernel does not tell how long processors have worked."""
        worked = self._worked()
        available_s = (time.perf_counter() - self._began) * len(self._processors)
        if worked is None or self._all_before is None or available_s <= 0:
            return 0.0
        return min(1.0, max(0.0, (worked - self._all_before) - (self._own_seconds() - self._own_before)) / available_s)
