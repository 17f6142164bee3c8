"""What a process asks its machine: memory, and how processes ended; loaded by its path, without the package, too."""
import os
import re
import resource
import signal

#: Files of a container's limit and use, cgroup version 2 and 1.
_CGROUPS = (('sys/fs/cgroup/memory.max', 'sys/fs/cgroup/memory.current'),
            ('sys/fs/cgroup/memory/memory.limit_in_bytes', 'sys/fs/cgroup/memory/memory.usage_in_bytes'))


def _memory(root: str, line_of: str) -> int:
    """Bytes that a line of /proc/meminfo has."""
    with open(os.path.join(root, 'proc/meminfo')) as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(line_of + ':'))


def total_bytes(root: str = '/') -> int:
    """Bytes of the machine, or a container's limit if less; `root` has /proc and /sys."""
    found = _memory(root, 'MemTotal')
    for path, _ in _CGROUPS:
        try:
            with open(os.path.join(root, path)) as limit:
                found = min(found, int(limit.read()))
        except (OSError, ValueError):  # no such limit, or 'max'
            continue
    return found


def available_bytes(root: str = '/') -> int:
    """Bytes that can be allocated without swapping, or a container's limit if less; `root` has /proc and /sys."""
    found = _memory(root, 'MemAvailable')
    for limit_path, used_path in _CGROUPS:
        try:
            with open(os.path.join(root, limit_path)) as limit, open(os.path.join(root, used_path)) as used:
                found = min(found, max(0, int(limit.read()) - int(used.read())))
        except (OSError, ValueError):  # no such limit, or 'max'
            continue
    return found


def remedy(error: BaseException) -> str:
    """What to do about an error, to follow its text: something where it is memory that could not be had."""
    if not isinstance(error, MemoryError) and not re.search('bad_alloc|Failed to allocate', str(error)):
        return ''
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return ('; raise the limit of address space, ulimit -v (it is %s now, in bytes), or give the machine, or the '
            'container, more memory' % ('unlimited' if limit == resource.RLIM_INFINITY else limit))


def describe_status(status: int) -> str:
    """Say what a ``Popen.returncode`` means."""
    if status < 0:
        names = {int(known): ' (%s)' % known.name for known in signal.Signals}
        return 'signal %d%s' % (-status, names.get(-status, ''))
    return 'exit status %d' % status
