"""How much memory this process may still take."""
import os

#: Files of a container's limit and use, cgroup version 2 and 1.
_CGROUPS = (('sys/fs/cgroup/memory.max', 'sys/fs/cgroup/memory.current'),
            ('sys/fs/cgroup/memory/memory.limit_in_bytes', 'sys/fs/cgroup/memory/memory.usage_in_bytes'))


def available_bytes(root: str = '/') -> int:
    """Bytes that can be allocated without swapping: what the kernel says, or less where a container has a limit.

    Parameters
    ----------
    root : str
        Where /proc and /sys are.
    """
    with open(os.path.join(root, 'proc/meminfo')) as lines:
        found = next(int(line.split()[1]) * 1024 for line in lines if line.startswith('MemAvailable:'))
    for limit_path, used_path in _CGROUPS:
        try:
            with open(os.path.join(root, limit_path)) as limit, open(os.path.join(root, used_path)) as used:
                found = min(found, max(0, int(limit.read()) - int(used.read())))
        except (OSError, ValueError):  # no such limit, or 'max'
            continue
    return found
