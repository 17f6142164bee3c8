"""Tells the command ``mxhybrid``, which must run where MXNet does not, from programs that train.

Python imports the package ``mxhybrid``, which imports MXNet, ahead of any module in it.  So the package has to know
from the process alone that it is imported for one of its tools.
"""
import os
import sys
from typing import List, Optional

#: Modules of the command that are workers of a job of their own, and need everything.
_JOBS = ('mxhybrid.commands.sanity', 'mxhybrid.commands.checks.try_joining')
#: Subcommands that need everything, too: networks of the user's may ask for it.
_WHOLE = ('plan', 'calibrate')
#: What the script of a console entry point says, by pip or by setuptools; bytes of it to look at.
_ENTRY_WORDS, _ENTRY_BYTES = (b'mxhybrid.commands', b'console_scripts'), 4096
#: Options of the interpreter that take a value.
_WITH_VALUE = 'WX'


def module_that_runs(words: List[str]) -> Optional[str]:
    """The module behind ``-m`` in the whole command line of an interpreter, None if there is none."""
    rest = iter(words[1:])
    for word in rest:
        if word == '--check-hash-based-pycs':
            next(rest, None)
        if not word.startswith('-') or word == '-':
            return None
        if word.startswith('--'):
            continue
        for at, letter in enumerate(word[1:], 2):
            if letter == 'm':
                return word[at:] or next(rest, '') or None
            if letter == 'c':
                return None
            if letter in _WITH_VALUE:
                if not word[at:]:
                    next(rest, None)
                break
    return None


def _asks_for_all() -> bool:
    return bool(sys.argv[1:]) and sys.argv[1] in _WHOLE


def is_command() -> bool:
    """Whether this process is ``mxhybrid ...`` or ``python -m mxhybrid ...``, or one of its modules by itself."""
    program = (getattr(sys, 'argv', None) or [''])[0]
    try:
        if program == '-m':  # until Python has found the module
            with open('/proc/self/cmdline') as handle:
                module = module_that_runs(handle.read().split('\0')[:-1]) or ''
            if module in ('mxhybrid', 'mxhybrid.__main__'):
                return not _asks_for_all()
            return (module.startswith('mxhybrid.commands') and module not in _JOBS
                    and module.rpartition('.')[2] not in _WHOLE)
        if os.path.basename(program) != 'mxhybrid' or _asks_for_all():
            return False
        with open(program, 'rb') as script:
            beginning = script.read(_ENTRY_BYTES)
        return any(word in beginning for word in _ENTRY_WORDS)
    except (OSError, UnicodeDecodeError):
        return False
