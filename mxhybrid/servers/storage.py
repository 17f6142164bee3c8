"""Directories for the rows of dynamic tables in files: a check before a table is made, and one folder for each table.

The folders of a directory have names of their own, so that tables and jobs may share it.  Their files are scratch.
"""
import contextlib
import os
import re
import secrets
from typing import Sequence, Tuple

from ..base.errors import SettingError
from ..base.settings import variable

#: Most characters of a table's name in the name of its folder.
_MOST_CHARACTERS = 100


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
