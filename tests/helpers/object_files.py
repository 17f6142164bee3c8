"""Object files of C++ sources, which are kept from run to run in ~/.cache/mxhybrid/objects (XDG_CACHE_HOME)."""
import contextlib
import os
import pathlib
import shutil

import object_files

#: Compiler flags of all tests.
FLAGS = ['-std=c++17', '-fno-omit-frame-pointer', '-ffp-contract=off', '-Wall', '-Wextra', '-Werror']
#: The folder of object files.
CACHE = pathlib.Path(os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache') / 'mxhybrid' / 'objects'
#: The most object files in the cache.
MAX_OBJECTS = 200


def compiled(source, flags, includes, folder):
    """Compile a C++ file without warnings, unless its object file is in the cache; return the path of a copy in a
    folder.
    """
    copy = folder / (source.stem + '.o')
    while not copy.exists():
        with contextlib.suppress(FileNotFoundError):  # another run of the tests may delete it at any time
            shutil.copy(str(object_files.compiled(source, ['g++', *FLAGS, *flags], includes, CACHE)), str(copy))
    return copy


def remove_oldest():
    """Delete the least recently used object files."""
    object_files.remove_oldest(CACHE, MAX_OBJECTS)
