"""Directories for the rows of dynamic tables in files: a check before a table is made."""
from typing import Sequence, Tuple

from ..base.errors import SettingError
from ..base.settings import variable


def refuse_problems(table: str, directory: str, problems: Sequence[Tuple[str, str]]) -> None:
    """Raise SettingError for the problems, by host, that a table has with its directory; return if there are none."""
    if problems:
        raise SettingError('%s: storage=%r %s: give a directory that exists, can be written and has room on every host '
                           "with servers, or storage='memory' (%s)"
                           % (table, directory, ', '.join('%s on host %s' % (problem, host)
                                                          for host, problem in sorted(set(problems))),
                              variable('storage')))
