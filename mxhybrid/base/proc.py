"""Read processes from ``/proc`` (proc(5)): ids, environments, states, times.

Functions return something empty for a process that has gone, or that this user may not read.  The module imports
nothing of the package, so that programs without MXNet can load it by its path.
"""
import contextlib
import os
import time
from typing import Dict, Iterator, List, Tuple

#: Indices in :func:`read_stat` of the parent's id, the CPU ticks in user and kernel mode, and the start time.
_PARENT, USER_TICKS, SYSTEM_TICKS, _START = 1, 11, 12, 19
TICKS_PER_S = os.sysconf('SC_CLK_TCK')


def pids() -> List[int]:
    """Return the ids of all processes that this process can see."""
    return [int(name) for name in os.listdir('/proc') if name.isdigit()]


def is_own(pid: int) -> bool:
    """Return whether a process belongs to the user of this process."""
    try:
        return os.stat('/proc/%d' % pid).st_uid == os.getuid()
    except OSError:
        return False


def read_environ(pid: int) -> Dict[str, str]:
    """Return the environment that a process was started with; a zombie has none."""
    try:
        with open('/proc/%d/environ' % pid, 'rb') as file:
            content = os.fsdecode(file.read())
    except OSError:
        return {}
    pairs = (entry.partition('=') for entry in content.split('\0'))
    return {name: value for name, sign, value in pairs if sign}


def read_executable(pid: int) -> str:
    """Return the path of the program that a process runs."""
    try:
        return os.readlink('/proc/%d/exe' % pid)
    except OSError:
        return ''


def read_stat(pid: int) -> List[str]:
    """Return the fields of ``/proc/PID/stat`` after the name of the command, which may hold spaces and parentheses."""
    try:
        with open('/proc/%d/stat' % pid) as file:
            return file.read().rpartition(')')[2].split()
    except OSError:
        return []


def state_and_start(pid: int) -> Tuple[str, str]:
    """Return the state letter of a process, and its start time, which tells it from a later process with its id."""
    fields = read_stat(pid)
    return (fields[0], fields[_START]) if len(fields) > _START else ('', '')


def ancestors(pid: int) -> Iterator[int]:
    """Yield the parent of a process, the parent's parent, and so on."""
    while pid > 1:
        fields = read_stat(pid)
        if len(fields) <= _PARENT:
            return
        pid = int(fields[_PARENT])
        yield pid


def thread_times(pid: int) -> Dict[str, List[float]]:
    """Return the times of each thread of a process, by id.

    They are the seconds on a CPU, the seconds of waiting for one, and how often the thread got one.
    """
    times = {}
    with contextlib.suppress(OSError):
        for thread in os.listdir('/proc/%d/task' % pid):
            with contextlib.suppress(OSError, ValueError, IndexError):
                times[thread] = _times_of('/proc/%d/task/%s/' % (pid, thread))
    return times


def _times_of(directory: str) -> List[float]:
    try:
        with open(directory + 'schedstat') as file:
            ran_ns, waited_ns, turns = file.read().split()[:3]
        return [int(ran_ns) / 1e9, int(waited_ns) / 1e9, int(turns)]
    except FileNotFoundError:  # a kernel without scheduler statistics: the thread counts as if it waited all the time
        with open(directory + 'stat') as file:
            fields = file.read().rpartition(')')[2].split()
        return [(int(fields[USER_TICKS]) + int(fields[SYSTEM_TICKS])) / TICKS_PER_S, time.monotonic(), 0]


def disk_bytes() -> int:
    """Return the bytes that this process has read from disks and written to them; 0 where the kernel does not say."""
    with contextlib.suppress(OSError, ValueError):
        with open('/proc/self/io') as file:
            counts = dict(line.split(': ') for line in file)
        return int(counts.get('read_bytes', 0)) + int(counts.get('write_bytes', 0))
    return 0


def boot_id() -> str:
    """Return the id that the kernel chose when it booted: processes with the same one run on the same kernel."""
    with open('/proc/sys/kernel/random/boot_id') as file:
        return file.read().strip()
