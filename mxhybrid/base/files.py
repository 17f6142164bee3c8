"""Write files so that no reader ever finds an incomplete one."""
import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import time
from typing import BinaryIO, Iterator, Optional

#: An error's message, of a path and the reason.
UNWRITABLE = '%s cannot be written: %s: give the name of a file in a directory that exists and has room'


def write_atomically(fname: str, data: bytes) -> None:
    """Write a file like :func:`written_aside`."""
    with written_aside(fname) as handle:
        handle.write(data)


def locked_within(handle: int, seconds: float, poll_s: float = 0.05) -> bool:
    """Lock an open file or directory against other processes; return False if one holds it for `seconds`.

    Return True, too, on a file system without such locks.
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


def digest_of(path: str) -> str:
    """Return a digest of the bytes of a small file."""
    with open(path, 'rb') as file:
        return hashlib.blake2b(file.read(), digest_size=16).hexdigest()


def has_digest(path: str, digest: str) -> bool:
    """Return whether this host has a file at a path, and its content has a digest."""
    try:
        return digest_of(path) == digest
    except OSError:
        return False


def sync_directory(path: str) -> None:
    """Flush the names in a directory to the disk, if its file system supports that."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # the file system does not support it
            raise
    finally:
        os.close(handle)


def cannot_write(path: str) -> str:
    """Return why a file cannot be written, for a check before long work on its contents; empty if it can."""
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
    """Write a file under another name and move it into place after the block, so that it is always complete.

    A kill leaves no incomplete file behind.  A symbolic link stays: its target is written.  A pipe or a device, such as
    ``/dev/null``, is written directly.  An OSError has the number of its cause: ELOOP for links that lead only to each
    other.
    """
    if _is_stream(fname):
        with open(fname, 'wb') as stream:
            yield stream
        return
    fname = os.path.realpath(fname)
    if os.path.islink(fname):  # realpath stops at a loop of links
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), fname)
    aside = '%s.%d.part' % (fname, os.getpid())
    try:
        descriptor = _nameless(os.path.dirname(aside) or '.')
        with open(aside, 'wb') if descriptor is None else os.fdopen(descriptor, 'wb') as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
            if descriptor is not None:
                # With src_dir_fd, which an absolute path ignores, Python calls linkat, which follows the link.
                os.link('/proc/self/fd/%d' % descriptor, aside, src_dir_fd=descriptor, follow_symlinks=True)
        os.replace(aside, fname)
    finally:
        if os.path.exists(aside):
            os.remove(aside)


def _is_stream(fname: str) -> bool:
    """Return whether a name leads to a pipe or device, which a file cannot replace."""
    try:
        mode = os.stat(fname).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _nameless(directory: str) -> Optional[int]:
    """Open a file without a name, which vanishes with its process unless it gets one; None if that is not possible."""
    try:
        return os.open(directory, os.O_WRONLY | os.O_TMPFILE, 0o666)
    except OSError:
        return None
