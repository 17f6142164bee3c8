"""Determine whether this process runs the command ``mxhybrid``, which must work without MXNet, or a training.

Python imports the package ``mxhybrid``, which imports MXNet, before any module in it.  Therefore the package reads the
command line of the process to find out whether it is imported for the command.
"""
import os
import sys
from typing import List, Optional

#: Modules of the command that run as workers of a job, and need MXNet.
_JOBS = ('mxhybrid.commands.sanity', 'mxhybrid.commands.checks.try_joining')
#: Subcommands that need MXNet, too, for networks of the user.
_WHOLE = ('plan', 'calibrate')
#: The program of an elastic launcher on each host.
_KEEPER = 'mxhybrid.elastic.keeper'
#: Words in the script of a console entry point, by pip or setuptools, and the bytes of the script to search.
_ENTRY_WORDS, _ENTRY_BYTES = (b'mxhybrid.commands', b'console_scripts'), 4096
#: Options of the interpreter that take a value.
_WITH_VALUE = 'WX'


def module_that_runs(words: List[str]) -> Optional[str]:
    """Return the module after ``-m`` in the command line of an interpreter; None if there is none."""
    rest = iter(words[1:])
    for word in rest:
        if word == '--check-hash-based-pycs':
            next(rest, None)
        if not word.startswith('-') or word == '-':
            return None
        if word.startswith('--'):
            continue
        for end, letter in enumerate(word[1:], 2):
            if letter == 'm':
                return word[end:] or next(rest, '') or None
            if letter == 'c':
                return None
            if letter in _WITH_VALUE:
                if not word[end:]:
                    next(rest, None)
                break
    return None


def _asks_for_all() -> bool:
    return bool(sys.argv[1:]) and sys.argv[1] in _WHOLE


def is_command() -> bool:
    """Return whether this process is ``mxhybrid ...``, ``python -m mxhybrid ...`` or a module of the command."""
    program = (getattr(sys, 'argv', None) or [''])[0]
    try:
        if program == '-m':  # until Python has found the module
            with open('/proc/self/cmdline') as handle:
                module = module_that_runs(handle.read().split('\0')[:-1]) or ''
            if module in ('mxhybrid', 'mxhybrid.__main__'):
                return not _asks_for_all()
            return module == _KEEPER or (module.startswith('mxhybrid.commands') and module not in _JOBS
                                         and module.rpartition('.')[2] not in _WHOLE)
        if os.path.basename(program) != 'mxhybrid' or _asks_for_all():
            return False
        with open(program, 'rb') as script:
            head = script.read(_ENTRY_BYTES)
        return any(word in head for word in _ENTRY_WORDS)
    except (OSError, UnicodeDecodeError):
        return False
