"""Memory of the machine, threads of operators, and statuses of processes; other programs load this module by its path.
"""
import os
import re
import resource
import signal
from typing import Optional

#: Files with a container's memory limit and use, of cgroup versions 2 and 1.  Beyond memory.high, processes hardly go
#: on.
_CGROUPS = (('sys/fs/cgroup/memory.max', 'sys/fs/cgroup/memory.current'),
            ('sys/fs/cgroup/memory.high', 'sys/fs/cgroup/memory.current'),
            ('sys/fs/cgroup/memory/memory.limit_in_bytes', 'sys/fs/cgroup/memory/memory.usage_in_bytes'))


def _memory(root: str, entry: str) -> int:
    """Return the bytes of an entry of /proc/meminfo."""
    with open(os.path.join(root, 'proc/meminfo')) as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(entry + ':'))


def _number_in(root: str, path: str) -> Optional[int]:
    """Return the number in a file of a cgroup; None if there is no such file, or it says 'max'."""
    try:
        with open(os.path.join(root, path)) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def cgroup_limit(root: str = '/') -> Optional[int]:
    """Return the bytes that a cgroup allows the processes of a container; None without a limit.  `root` has /sys."""
    limits = [_number_in(root, path) for path, _ in _CGROUPS]
    # Version 1 has a limit of almost 2^63 where there is none.
    return min((limit for limit in limits if limit is not None and limit < 1 << 60), default=None)


def total_bytes(root: str = '/') -> int:
    """Return the memory of the machine in bytes, or a container's limit if less; `root` has /proc and /sys."""
    total, limit = _memory(root, 'MemTotal'), cgroup_limit(root)
    return total if limit is None else min(total, limit)


def openmp_threads() -> Optional[int]:
    """Return the number of threads that OMP_NUM_THREADS gives to an operator; None if it is not set to a number."""
    setting = os.environ.get('OMP_NUM_THREADS', '').partition(',')[0].strip()
    return int(setting) if setting.isdigit() and int(setting) else None


def available_bytes(root: str = '/') -> int:
    """Return the bytes that can be allocated without swapping, or the remaining bytes of a container if fewer.

    `root` has /proc and /sys.
    """
    available = _memory(root, 'MemAvailable')
    for limit_path, used_path in _CGROUPS:
        limit, used = _number_in(root, limit_path), _number_in(root, used_path)
        if limit is not None and used is not None:
            available = min(available, max(0, limit - used))
    return available


def remedy(error: BaseException) -> str:
    """Return a remedy to append to the text of an error, for failed allocations of memory; '' for other errors."""
    if not isinstance(error, MemoryError) and not re.search('bad_alloc|Failed to allocate', str(error)):
        return ''
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return ('; raise the limit of address space, ulimit -v (it is %s now, in bytes), or give the machine, or the '
            'container, more memory' % ('unlimited' if limit == resource.RLIM_INFINITY else limit))


def describe_status(status: int) -> str:
    """Return a ``Popen.returncode`` in words."""
    if status < 0:
        names = {int(known): ' (%s)' % known.name for known in signal.Signals}
        return 'signal %d%s' % (-status, names.get(-status, ''))
    return 'exit status %d' % status


def hint_at_status(status: int) -> str:
    """Return a hint to append to ``describe_status(status)``: at memory that ran out, for SIGKILL; empty for others."""
    if status != -signal.SIGKILL:
        return ''
    return ('; if nobody killed it, memory ran out: see dmesg, or the limit of the container, and give it more memory, '
            'use more servers, or keep rows of dynamic tables in files (MXHYBRID_STORAGE)')
