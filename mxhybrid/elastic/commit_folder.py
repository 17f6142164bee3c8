"""The folder of commits in the memory of a keeper: a tmpfs that only the keeper's own mount namespace has.

Other processes of the host reach it by ``/proc/PID/root``.  It has no name elsewhere, so it ends with the keeper,
however that ends.  Where the system allows no such namespace, for example in most containers, it is a folder in
``/dev/shm``: a keeper removes it when it ends, and those that killed keepers left when it starts.
"""
import ctypes
import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from typing import Tuple

from ..base.log import get_logger

logger = get_logger(__name__)

_SHARED_MEMORY = '/dev/shm'
_PREFIX = 'mxhybrid-keeper-'
# linux/sched.h and sys/mount.h
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 2, 4, 8, 16384, 1 << 18


def make_folder() -> Tuple[str, bool]:
    """Make the folder of this process; return its path for all processes, and whether it has a name to remove.

    The process must have one thread only.
    """
    base = _SHARED_MEMORY if os.path.isdir(_SHARED_MEMORY) else tempfile.gettempdir()
    _remove_left(base)
    try:
        _mount(base)
        return '/proc/%d/root%s' % (os.getpid(), base), False
    except OSError as error:
        logger.debug('no mount namespace: %s', error)
    path = tempfile.mkdtemp(prefix=_PREFIX, dir=base)
    fcntl.flock(os.open(path, os.O_RDONLY | os.O_CLOEXEC), fcntl.LOCK_EX)  # until this process ends
    return path, True


def _mount(target: str) -> None:
    libc, user, group = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()

    def check(status: int) -> None:
        if status:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    check(libc.unshare(_CLONE_NEWNS | (_CLONE_NEWUSER if user else 0)))
    if user:
        for file, text in (('setgroups', 'deny'), ('uid_map', '%d %d 1' % (user, user)),
                           ('gid_map', '%d %d 1' % (group, group))):
            with open('/proc/self/' + file, 'w') as handle:
                handle.write(text)
    check(libc.mount(b'none', b'/', None, _MS_REC | _MS_PRIVATE, None))
    check(libc.mount(b'mxhybrid', target.encode(), b'tmpfs', _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, b'mode=0700'))


def _remove_left(base: str) -> None:
    """Remove the folders of keepers that were killed: nobody holds their locks."""
    for name in os.listdir(base):
        path = os.path.join(base, name)
        if name.startswith(_PREFIX):
            with suppress(OSError):
                handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    if os.fstat(handle).st_uid == os.getuid():
                        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(path, ignore_errors=True)
                finally:
                    os.close(handle)


def size_of(path: str) -> int:
    """Return the bytes of all files below a folder."""
    return sum(os.path.getsize(os.path.join(directory, name)) for directory, _, names in os.walk(path)
               for name in names)
