"""Freed memory that stays with the process: arrays of the next step take it again.

Each step makes new arrays with the rows of dynamic tables and their gradients, some megabytes each.  By default, the C
library may give their memory back to the system when they are freed, and then each step gets new pages from the system,
which cost more than a copy of the rows.
"""
import ctypes
import functools
import os

#: Parameters of ``mallopt`` (malloc.h of glibc).
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: The highest values to which glibc adjusts the two by itself (``DEFAULT_MMAP_THRESHOLD_MAX``, and twice as much).
_MMAP_BYTES, _TRIM_BYTES = 32 << 20, 64 << 20
#: Variables by which users set them.
_VARIABLES = ('MALLOC_TRIM_THRESHOLD_', 'MALLOC_MMAP_THRESHOLD_', 'GLIBC_TUNABLES')


@functools.lru_cache(maxsize=None)
def keep_freed_memory() -> bool:
    """Let this process keep up to 64 MB of freed memory, and take blocks up to 32 MB from it; return whether it does.

    Nothing is changed if the user has set either value, or if the C library has no such parameters.
    """
    set_parameter = getattr(ctypes.CDLL(None), 'mallopt', None)
    if set_parameter is None or any(os.environ.get(name) for name in _VARIABLES):
        return False
    return bool(set_parameter(_MMAP_THRESHOLD, _MMAP_BYTES) and set_parameter(_TRIM_THRESHOLD, _TRIM_BYTES))
