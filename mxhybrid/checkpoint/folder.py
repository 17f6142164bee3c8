"""The directory of checkpoints: their names, and the locks of writers and readers."""
import fcntl
import os
import re
from contextlib import ExitStack, contextmanager, suppress
from typing import Iterator, List

from ..base.errors import CheckpointError
from ..base.files import locked_within

#: Seconds to wait for another process that writes into the directory, the last of an earlier job.
LOCK_TIMEOUT_S = 60.0

#: Checkpoints, from the newest one, that :func:`kept` locks.  Each lock needs a descriptor, of which a process often
#: may have only 1,024.
MOST_LOCKED = 100

#: Ending of the name of a compacted checkpoint, which counts instead of the delta of the name before.
COMPACTED = '-compacted'
#: Pattern of the names of checkpoints.
NAME = re.compile(r'(\d{8,})-step-(\d+)(%s)?' % COMPACTED)


def names(directory: str) -> List[str]:
    """Return the names of the checkpoints in a directory, newest first; none if there is no directory."""
    try:
        entries = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(filter(NAME.fullmatch, entries), key=lambda name: (number_of(name), name), reverse=True)


def number_of(name: str) -> int:
    """Return the number of a checkpoint; the newest has the highest."""
    return int(name.split('-')[0])


def step_of(name: str) -> int:
    """Return the step of a checkpoint."""
    return int(name.split('-')[2])


@contextmanager
def locked(directory: str) -> Iterator[None]:
    """Keep other processes from writing into a directory, or looking for a checkpoint there, at the same time.

    A worker of a job that failed may still write when the next job starts.  CheckpointError if another process has held
    the lock for :data:`LOCK_TIMEOUT_S`.
    """
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not locked_within(handle, LOCK_TIMEOUT_S):
            raise CheckpointError('another process has used %s for %g s: end that process, or give every job a '
                                  'directory of its own' % (directory, LOCK_TIMEOUT_S))
        yield
    finally:
        os.close(handle)


@contextmanager
def kept(directory: str) -> Iterator[List[str]]:
    """Keep writers from removing the checkpoints that a directory has now; yield their :func:`names`.

    Only the newest :data:`MOST_LOCKED` are locked: a writer that finds a lock leaves the bases of that checkpoint, too.
    """
    with ExitStack() as locks:
        with locked(directory):
            checkpoints = names(directory)
            for name in checkpoints[:MOST_LOCKED]:
                locks.enter_context(shared(os.path.join(directory, name)))
        yield checkpoints


@contextmanager
def shared(path: str) -> Iterator[bool]:
    """Show other processes that this one uses the directory of a checkpoint, see :func:`is_read_by_others`.

    Yield False if another process removes it just now.
    """
    handles, is_usable = [], True
    try:
        with suppress(OSError):  # damage is found later; not every file system has such locks
            handles.append(open_at_once(path))
            try:
                fcntl.flock(handles[0], fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                is_usable = False
        yield is_usable
    finally:
        for handle in handles:
            os.close(handle)


def open_at_once(path: str) -> int:
    """Open a path to read without waiting, as opening a pipe otherwise would."""
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def is_in_use(path: str) -> bool:
    """Return whether another process reads or writes a checkpoint in a directory, see :func:`shared`."""
    handle = open_at_once(path)
    try:
        return is_read_by_others(handle)
    finally:
        os.close(handle)


def is_read_by_others(handle: int) -> bool:
    """Return whether another process reads a checkpoint, see :func:`kept`."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass  # not every file system has locks of directories
    return False
