"""Find and load the compiled libraries of the package."""
import ctypes
import glob
import os
import sys
from typing import Any, List

#: Advice for a library that was compiled from other sources than those that are present.
STALE_REMEDY = ('compile it again: in a checkout by scripts/install, otherwise by pip install --force-reinstall '
                '--no-deps mxhybrid')


def compiled_files(folder: str, name: str) -> List[str]:
    """Return the compiled libraries with a name in a folder, that of this interpreter first."""
    return sorted(glob.glob(os.path.join(folder, name + '*.so')),
                  key=lambda path: (sys.implementation.cache_tag or '') not in path)


class StaleLibraryError(OSError):
    """A compiled library was compiled from other sources than those that are present."""

    def __init__(self, path: str, problem: str):
        super().__init__('%s is stale: it %s: %s' % (path, problem, STALE_REMEDY))


class CompiledLibrary(ctypes.CDLL):
    """A compiled library of one version.

    - `version_function`: the function that returns the library's version.
    - `version`: the version that is needed.

    Raises StaleLibraryError if it has another version, or lacks a function, when this is used for the first time.
    OSError if it cannot be loaded.
    """

    def __init__(self, path: str, version_function: str, version: int):
        super().__init__(path)
        # First: another version may lack other functions.
        actual = getattr(self, version_function)()
        if actual != version:
            raise StaleLibraryError(path, 'has version %d, but version %d is needed' % (actual, version))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            if name.startswith('_'):
                raise
            raise StaleLibraryError(self._name, 'lacks the function ' + name) from error
