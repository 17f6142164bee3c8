"""Directories for the rows of dynamic tables in files: a check before a table is made, and one folder for each table.

The folders of a directory have names of their own, so that tables and jobs may share it.  Their files are scratch.
"""
import contextlib
import fcntl
import os
import re
import secrets
import time
from typing import Iterable, Sequence, Tuple

from ..base.errors import SettingError
from ..base.settings import variable

#: Most characters of a table's name in the name of its folder.
_MOST_CHARACTERS = 100
#: The end of the names of folders of tables, see :func:`folder_name`.
_FOLDER = re.compile(r'\.[0-9a-f]{16}$')
#: Seconds for which the folder of a table may be empty while its job starts.
_NEW_S = 60.0
#: Seconds that a server which was killed gets to end, and seconds between attempts to remove its partition.
KILLED_S, _INTERVAL_S = 1.0, 0.02


def folder_name(table: str) -> str:
    """Return a name, which no other table or job has, for the folder of a table."""
    return '%s.%s' % (re.sub('[^A-Za-z0-9_.-]', '_', table)[:_MOST_CHARACTERS].lstrip('.'), secrets.token_hex(8))


def refuse_problems(table: str, directory: str, problems: Sequence[Tuple[str, str]]) -> None:
    """Raise SettingError for the problems, by host, that a table has with its directory; return if there are none."""
    if problems:
        raise SettingError('%s: storage=%r %s: give a directory that exists, can be written and has room on every host '
                           "with servers, or storage='memory' (%s)"
                           % (table, directory, ', '.join('%s on host %s' % (problem, host)
                                                          for host, problem in sorted(set(problems))),
                              variable('storage')))


def make_folder(folder: str) -> None:
    """Make the folder of a table, in which each partition has a folder; another server may have made it."""
    os.makedirs(folder, 0o700, exist_ok=True)


def remove_folder(folder: str) -> None:
    """Remove the folder of a table if this server is the last one that used it."""
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def abandon_folder(folder: str, own_partitions: Iterable[int], deadline: float = 0.0) -> None:
    """Remove the partitions of this server, which is about to end without freeing its rows, from the folder of a table,
    and those of servers that were killed.

    Only locks and folders are left of them: other files lose their names when they are made.  A process that was killed
    may hold its lock a little longer than its connections, so it is waited for until `deadline`, on the clock
    :func:`time.monotonic`.
    """
    own = set(map(str, own_partitions))
    with contextlib.suppress(OSError):
        while True:
            for name in os.listdir(folder):
                _remove_partition(os.path.join(folder, name), name in own)
            if not os.listdir(folder) or time.monotonic() >= deadline:
                break
            time.sleep(_INTERVAL_S)
    remove_folder(folder)


def remove_leftovers(directory: str) -> None:
    """Remove the folders of tables whose servers were all killed, except new ones, which a job may be about to fill."""
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            folder = os.path.join(directory, name)
            if _FOLDER.search(name) and os.path.getmtime(folder) < time.time() - _NEW_S:
                abandon_folder(folder, ())


def _remove_partition(path: str, is_own: bool) -> None:
    """Remove the folder of a partition that is this process's own, or whose lock no process holds."""
    lock = os.path.join(path, 'lock')
    with contextlib.suppress(OSError):
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        try:
            if not is_own:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(lock)
        finally:
            os.close(descriptor)
    with contextlib.suppress(OSError):
        os.rmdir(path)
