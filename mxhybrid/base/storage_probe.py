"""Directories for the rows of dynamic tables in files: whether they can hold rows, and which file system has them."""
import ctypes
import errno
import os
import tempfile
from typing import NamedTuple, Sequence, Tuple

from .errors import SettingError
from .proc import boot_id
from .settings import variable

#: Room that a directory must have.
_LEAST_ROOM_BYTES = 1 << 20
#: File systems of other machines, whose mounts have the same source on every host.
_OF_THE_NETWORK = ('nfs', 'nfs4', 'cifs', 'smb3', 'ceph', 'lustre', 'beegfs', 'gpfs', 'afs', 'orangefs', 'wekafs',
                   'fuse.glusterfs', 'fuse.sshfs', 'fuse.ceph', 'fuse.s3fs')


class Volume(NamedTuple):
    """The file system of a directory."""

    #: Its type, for example ext4, and the device or server that has it.
    kind: str
    source: str
    size_bytes: int
    #: Bytes that this user may still write.
    free_bytes: int
    #: Whether another machine has it.
    is_remote: bool
    #: Equal on all hosts that have the same file system there.
    identity: str


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


def refuse_problems(table: str, directory: str, problems: Sequence[Tuple[str, str]]) -> None:
    """Raise SettingError for the problems, by host, that a table has with its directory; return if there are none."""
    if problems:
        raise SettingError('%s: storage=%r %s: give a directory that exists, can be written and has room on every host '
                           "with servers, or storage='memory' (%s)"
                           % (table, directory, ', '.join('%s on host %s' % (problem, host)
                                                          for host, problem in sorted(set(problems))),
                              variable('storage')))


def reserves_blocks(directory: str) -> bool:
    """Return whether files of a directory can grow by reserved blocks, without which writing to a full disk kills.

    The C library's ``posix_fallocate``, and Python's, write zeros where the file system cannot reserve blocks.
    """
    library = ctypes.CDLL(None, use_errno=True)
    with tempfile.TemporaryFile(dir=directory) as file:
        while library.fallocate64(file.fileno(), 0, ctypes.c_int64(0), ctypes.c_int64(_LEAST_ROOM_BYTES)):
            if ctypes.get_errno() != errno.EINTR:
                return False
        return True


def volume_of(directory: str, root: str = '/') -> Volume:
    """Return the file system of a directory that exists; `root` has /proc."""
    path = os.path.realpath(directory)
    kind = source = origin = mount = ''
    with open(os.path.join(root, 'proc/self/mountinfo')) as lines:
        for line in lines:
            fields, _, rest = line.partition(' - ')
            _, _, _, origin_here, point = fields.split(' ')[:5]
            point = point.encode().decode('unicode_escape')  # a space is \040
            # A later mount at the same point hides the earlier one.
            if len(point) >= len(mount) and os.path.commonpath([point, path]) == point:
                kind, source = rest.split(' ')[:2]
                mount, origin = point, origin_here
    status = os.statvfs(path)
    is_remote = kind in _OF_THE_NETWORK
    identity = ' '.join((kind, source, origin) if is_remote else (boot_id(), str(os.stat(path).st_dev)))
    return Volume(kind, source, status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize, is_remote,
                  identity)
