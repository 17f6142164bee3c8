"""Removes old checkpoints and temporary files; a file that cannot be removed is left, with a warning."""
import errno
import itertools
import os
import re
import shutil
from contextlib import contextmanager
from typing import Iterator, List, Set

from ..base.log import get_logger

logger = get_logger(__name__)

#: The kernel's list of mount points (proc(5)).
_MOUNTS = '/proc/self/mountinfo'
#: Paths that could not be removed, for each of which there was a warning.
_left: Set[str] = set()


@contextmanager
def tried(path: str) -> Iterator[None]:
    """Surround the removal of `path`: an OSError becomes a warning, given once as long as the error lasts."""
    try:
        yield
    except OSError as error:
        if path not in _left:
            _left.add(path)
            logger.warning('cannot remove %s, so it is left: %s', path, error)
    else:
        _left.discard(path)


def free_name(directory: str, name: str) -> str:
    """Return the first path of ``name``, ``name-1``, ``name-2`` … in a directory that nothing has, not even a link.
    """
    paths = (os.path.join(directory, '%s-%d' % (name, number) if number else name) for number in itertools.count())
    return next(path for path in paths if not os.path.lexists(path))


def delete(path: str) -> None:
    """Remove a file, a link without its target, or as much of a directory as possible; raise the first error then."""
    if os.path.islink(path) or not os.path.isdir(path):
        os.unlink(path)
        return
    refuse_mounts(path)
    errors: List[BaseException] = []
    shutil.rmtree(path, onerror=lambda function, where, info: errors.append(info[1]))
    if errors:
        raise errors[0]


def refuse_mounts(path: str) -> None:
    """Raise OSError if a file system is mounted in a directory or below: the removal would empty that file system."""
    if os.path.islink(path):
        return
    top = os.path.join(os.path.realpath(path), '')
    try:
        with open(_MOUNTS, 'rb') as file:
            lines = file.read().splitlines()
    except FileNotFoundError:  # no /proc
        return
    for line in lines:
        # Spaces and tabs are written as backslash and three octal digits.
        point = re.sub(rb'\\(\d{3})', lambda match: bytes([int(match.group(1), 8)]), line.split()[4])
        if os.path.join(os.fsdecode(point), '').startswith(top):
            raise OSError(errno.EBUSY, 'a file system is mounted there', os.fsdecode(point))
