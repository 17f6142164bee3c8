"""Files that are whole whenever anybody reads them."""
import contextlib
import errno
import fcntl
import os
import stat
import time
from typing import BinaryIO, Iterator, Optional


def write_atomically(fname: str, data: bytes) -> None:
    """Write a file as :func:`written_aside` does."""
    with written_aside(fname) as handle:
        handle.write(data)


def locked_within(handle: int, seconds: float, poll_s: float = 0.05) -> bool:
    """Lock an open file, or directory, against others; False where another process has held it for so long.

    True, too, on a file system that has no such locks.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(poll_s)
        except OSError:
            return True


def cannot_write(path: str) -> str:
    """Why a file cannot be written, to be told before what is to be written takes long to find; empty if it can."""
    directory = os.path.dirname(os.path.abspath(path))
    if not path:
        return 'the name of the file is empty: give one'
    if os.path.isdir(path):
        return '%s is a directory: give a file in it' % path
    if not os.path.isdir(directory) or not os.access(directory, os.W_OK):
        return '%s cannot be written: there is no directory %s for this user to write to' % (path, directory)
    return ''


@contextlib.contextmanager
def written_aside(fname: str) -> Iterator[BinaryIO]:
    """Write a file aside and move it into place after the block, so that nobody ever reads half of it, nor finds it
    after a kill.

    A symbolic link stays: the file that it leads to is written, or made.  What is no file, a pipe or ``/dev/null``, is
    written to as it is.  An OSError has the number of its cause, ELOOP for links that lead nowhere but to each other.
    """
    if _is_stream(fname):
        with open(fname, 'wb') as stream:
            yield stream
        return
    fname = os.path.realpath(fname)
    if os.path.islink(fname):  # what realpath leaves of a loop
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), fname)
    aside = '%s.%d.part' % (fname, os.getpid())
    try:
        descriptor = _nameless(os.path.dirname(aside) or '.')
        with open(aside, 'wb') if descriptor is None else os.fdopen(descriptor, 'wb') as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
            if descriptor is not None:
                # The first argument is absolute, and with a directory for it Python calls linkat, which follows it.
                os.link('/proc/self/fd/%d' % descriptor, aside, src_dir_fd=descriptor, follow_symlinks=True)
        os.replace(aside, fname)
    finally:
        if os.path.exists(aside):
            os.remove(aside)


def _is_stream(fname: str) -> bool:
    """Whether a name leads to something that is neither file nor directory, and so cannot be replaced by one."""
    try:
        mode = os.stat(fname).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _nameless(directory: str) -> Optional[int]:
    """A new file without a name, which vanishes with its process until it gets one; None where that is not possible."""
    try:
        return os.open(directory, os.O_WRONLY | os.O_TMPFILE, 0o666)
    except OSError:
        return None
