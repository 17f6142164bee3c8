"""The compiled library of the planner: it simulates training steps, and builds the tasks of transfers."""
import functools
import os
from typing import Any

from ...base.compiled import CompiledLibrary, StaleLibraryError, compiled_files
from ...base.errors import SettingError

#: The version that ``planner_version()`` of ``src/event_loop.cc`` has to return.
_VERSION = 10
_REMEDY = 'install g++, then reinstall mxhybrid with pip install --force-reinstall --no-deps'


@functools.lru_cache(maxsize=None)
def planner_library(path: str = '') -> Any:
    """Load the library that ``setup.py`` compiled, or another one by its path.

    Raises
    ------
    SettingError
        The library is missing, cannot be loaded, or is of another version.
    """
    paths = [path] if path else compiled_files(os.path.dirname(__file__), '_simulate')
    if not paths:
        raise SettingError('planner: its compiled library _simulate*.so is missing from %s, because there was no g++ '
                           'when mxhybrid was installed: %s' % (os.path.dirname(__file__), _REMEDY))
    try:
        return CompiledLibrary(paths[0], 'planner_version', _VERSION)
    except StaleLibraryError as error:
        raise SettingError('planner: its compiled library %s' % error) from error
    except OSError as error:
        raise SettingError('planner: its compiled library %s cannot be loaded: %s: %s'
                           % (paths[0], error, _REMEDY)) from error
