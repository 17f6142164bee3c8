"""The directory that checkpoints are in: which it has, and who writes there or reads them."""
import errno
import fcntl
import os
import re
from contextlib import contextmanager, suppress
from typing import Iterator, List

from ..base.errors import CheckpointError
from ..base.files import locked_within

#: Seconds to wait for another process that writes into the directory, the last of an earlier job.
LOCK_TIMEOUT_S = 60.0

_NAME = re.compile(r'(\d{8,})-step-(\d+)')


def names(directory: str) -> List[str]:
    """Names of the checkpoints in a directory, newest first; none where there is no directory."""
    try:
        found = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(filter(_NAME.fullmatch, found), key=number_of, reverse=True)


def number_of(name: str) -> int:
    """The number of a checkpoint, by which it is newer than others."""
    return int(name.split('-')[0])


@contextmanager
def locked(directory: str) -> Iterator[None]:
    """Keep other processes from writing into a directory, or looking for a checkpoint there, at the same time.

    The last worker of a job that failed may still be writing when the next one starts.  CheckpointError if another
    process has held the directory for :data:`LOCK_TIMEOUT_S`.
    """
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not locked_within(handle, LOCK_TIMEOUT_S):
            raise CheckpointError('another process has used %s for %g s: end it, or give every job a directory of its '
                                  'own' % (directory, LOCK_TIMEOUT_S))
        yield
    finally:
        os.close(handle)


@contextmanager
def kept(directory: str) -> Iterator[List[str]]:
    """Keep writers from removing the checkpoints that a directory has now; gives their :func:`names`."""
    handles = []
    try:
        with locked(directory):
            found = names(directory)
            for name in found:
                with suppress(OSError):  # a damaged one is found out later; not every file system has such locks
                    handles.append(open_at_once(os.path.join(directory, name)))
                    fcntl.flock(handles[-1], fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield found
    finally:
        for handle in handles:
            os.close(handle)


def sync_directory(path: str) -> None:
    """Flush the names in a directory to the disk, where its file system can."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot
            raise
    finally:
        os.close(handle)


def open_at_once(path: str) -> int:
    """Open whatever is there to read; a pipe, say, would be waited for."""
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def is_read_by_others(handle: int) -> bool:
    """Whether another process keeps an open checkpoint, see :func:`kept`."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass  # not every file system has locks of directories
    return False
