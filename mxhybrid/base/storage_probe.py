"""Directories for the rows of dynamic tables in files: whether they can hold rows."""
import errno
import os
import tempfile

#: Room that a directory must have.
_LEAST_ROOM_BYTES = 1 << 20


def problem_with(directory: str) -> str:
    """Return the reason why this host cannot keep rows in files of a directory, '' if it can."""
    if not os.path.exists(directory):
        return 'is missing'
    if not os.path.isdir(directory):
        return 'is no directory'
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            os.posix_fallocate(file.fileno(), 0, _LEAST_ROOM_BYTES)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return 'is full'
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # of file systems that cannot reserve blocks
            return 'cannot be written (%s)' % os.strerror(error.errno or 0)
    return ''
