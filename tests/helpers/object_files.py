"""Object files of C++ sources, which are kept from run to run.

They are in ~/.cache/mxhybrid/objects (XDG_CACHE_HOME), by compiler, flags, source and headers.
"""
import contextlib
import functools
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile

#: Compiler flags of all tests.
FLAGS = ['-std=c++17', '-fno-omit-frame-pointer', '-ffp-contract=off', '-Wall', '-Wextra', '-Werror']
#: The folder of object files.
CACHE = pathlib.Path(os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache') / 'mxhybrid' / 'objects'
#: The most object files in the cache.
MAX_OBJECTS = 200


@functools.lru_cache(maxsize=None)
def _compiler_and_headers(folders):
    """Return a digest of the compiler's version and of all headers, on which an object file depends."""
    digest = hashlib.sha256(subprocess.run(['g++', '--version'], check=True, stdout=subprocess.PIPE).stdout)
    for header in sorted(header for folder in folders for header in folder.rglob('*.h')):
        digest.update(header.name.encode() + header.read_bytes())
    return digest.digest()


def compiled(source, flags, includes, folder):
    """Compile a C++ file without warnings, unless its object file is in the cache; return the path of a copy.

    Parameters
    ----------
    source : Path
    flags : list of str
        Compiler flags, beside `FLAGS`.
    includes : sequence of Path
        Folders of headers, beside that of the source.
    folder : Path
        The folder of the copy.
    """
    command_line = ['g++', *FLAGS, *flags]
    folders = ['-I%s' % include for include in includes]
    key = hashlib.sha256(_compiler_and_headers((*includes, source.parent)) + repr(command_line).encode()
                         + source.read_bytes()).hexdigest()[:24]
    cached, copy = CACHE / ('%s-%s.o' % (source.stem, key)), folder / (source.stem + '.o')
    with contextlib.suppress(FileNotFoundError):  # another run of the tests may delete it at any time
        os.utime(str(cached))
        shutil.copy(str(cached), str(copy))
        return copy
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=str(CACHE)) as scratch:
        object_file = pathlib.Path(scratch) / 'compiled.o'
        subprocess.run([*command_line, *folders, '-c', source, '-o', object_file], check=True, timeout=240)
        shutil.copy(str(object_file), str(copy))
        object_file.replace(cached)
    return copy


def remove_oldest():
    """Delete the least recently used object files; another run of the tests may do the same now."""
    times = {}
    for path in CACHE.glob('*.o'):
        with contextlib.suppress(FileNotFoundError):
            times[path] = path.stat().st_mtime
    for path in sorted(times, key=times.get, reverse=True)[MAX_OBJECTS:]:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
