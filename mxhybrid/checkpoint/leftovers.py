"""Remove what is old, and only that; what cannot be removed is told of and left."""
import errno
import itertools
import os
import re
import shutil
from contextlib import contextmanager
from typing import Iterator, List, Set

from ..base.log import get_logger

logger = get_logger(__name__)

#: Where the kernel says what is mounted where (proc(5)).
_MOUNTS = '/proc/self/mountinfo'
#: What could not be removed, so that each is told of once.
_left: Set[str] = set()


@contextmanager
def tried(path: str) -> Iterator[None]:
    """Around the removal of `path`: an OSError is a warning, given once as long as it lasts."""
    try:
        yield
        _left.discard(path)
    except OSError as error:
        if path not in _left:
            _left.add(path)
            logger.warning('cannot remove %s, so it is left: %s', path, error)


def free_name(directory: str, name: str) -> str:
    """Path of the first of ``name``, ``name-1``, ``name-2`` in a directory that nothing has, not even a dead link."""
    path = os.path.join(directory, name)
    for number in itertools.count(1):
        if not os.path.lexists(path):
            break
        path = os.path.join(directory, '%s-%d' % (name, number))
    return path


def delete(path: str) -> None:
    """Remove whatever is there: of a link the link alone, of a directory as much as can be, then the first error."""
    if os.path.islink(path) or not os.path.isdir(path):
        os.unlink(path)
        return
    refuse_mounts(path)
    errors: List[BaseException] = []
    shutil.rmtree(path, onerror=lambda function, where, info: errors.append(info[1]))
    if errors:
        raise errors[0]


def refuse_mounts(path: str) -> None:
    """OSError if something is mounted on a directory or below: its removal would empty another file system."""
    if os.path.islink(path):
        return
    top = os.path.join(os.path.realpath(path), '')
    try:
        with open(_MOUNTS, 'rb') as file:
            lines = file.read().splitlines()
    except FileNotFoundError:  # no /proc
        return
    for line in lines:
        # Spaces and the like are written as backslash and three octal digits.
        point = re.sub(rb'\\(\d{3})', lambda found: bytes([int(found.group(1), 8)]), line.split()[4])
        if os.path.join(os.fsdecode(point), '').startswith(top):
            raise OSError(errno.EBUSY, 'a file system is mounted there', os.fsdecode(point))
