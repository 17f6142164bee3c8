"""The compiled part of the planner, ``src/*.cc``."""
import ctypes
import functools
import os
from typing import Any

from ...base.compiled import compiled_files

#: What ``planner_version()`` has to return.
_VERSION = 7


@functools.lru_cache(maxsize=None)
def planner_library(path: str = '') -> Any:
    """What ``setup.py`` has compiled, or another library by its path; OSError, which says what to do, where there is
    none.
    """
    found = [path] if path else compiled_files(os.path.dirname(__file__), '_simulate')
    if not found:
        raise OSError('the compiled part of the planner is missing: install g++ and then mxhybrid again, with '
                      'pip install --force-reinstall --no-deps')
    library = ctypes.CDLL(found[0])
    version = library.planner_version()
    if version != _VERSION:
        raise OSError('%s is of version %d, and not %d: install mxhybrid anew' % (found[0], version, _VERSION))
    return library
