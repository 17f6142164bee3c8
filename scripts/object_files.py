"""Object files of C++ sources, kept from build to build: setup.py and the tests of compiled code use them."""
import contextlib
import hashlib
import os
import pathlib
import re
import subprocess
import tempfile

_INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def compiled(source, command_line, includes, cache):
    """Return the path of an object file; compile the source if the cache does not have it.

    Its name depends on the compiler and its options (`command_line`), the source and the headers that the source
    includes, but not on the folder of the sources: several clones of the project share a cache. `includes` are folders
    of headers, beside that of the source.
    """
    digest = hashlib.sha256(subprocess.run([command_line[0], '--version'], check=True, stdout=subprocess.PIPE).stdout)
    digest.update(repr(command_line).encode())
    for path in _with_headers(source, includes):
        digest.update(path.name.encode() + path.read_bytes())
    path = cache / ('%s-%s.o' % (source.stem, digest.hexdigest()[:24]))
    with contextlib.suppress(FileNotFoundError):
        os.utime(str(path))
        return path
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=str(cache)) as scratch:
        object_file = pathlib.Path(scratch) / 'compiled.o'
        subprocess.run([*command_line, *('-I%s' % include for include in includes), '-c', source, '-o', object_file],
                       check=True, timeout=600)
        object_file.replace(path)
    return path


def _with_headers(source, includes):
    """Return the paths of a source and of the headers that it includes, directly or through others."""
    paths = [source.resolve()]
    for path in paths:  # it grows
        for name in _INCLUDE.findall(path.read_bytes()):
            candidates = ((folder / os.fsdecode(name)).resolve() for folder in (path.parent, *includes))
            header = next((candidate for candidate in candidates if candidate.is_file()), path)
            if header not in paths:
                paths.append(header)
    return paths


def remove_oldest(cache, max_count):
    """Delete object files but the most recently used ones; another build may do the same now."""
    times = {}
    for path in cache.glob('*.o'):
        with contextlib.suppress(FileNotFoundError):
            times[path] = path.stat().st_mtime
    for path in sorted(times, key=times.get, reverse=True)[max_count:]:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
