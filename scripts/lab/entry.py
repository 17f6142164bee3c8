"""Begins the command lines of scripts/: switches to the environment of scripts/install where Python has no MXNet."""
import importlib
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

from .launchers import REPOSITORY, SCRIPTS


def run(command: str, module: str) -> None:
    """Run `main` of a module of this package, and end with its status; `command` is what the user typed."""
    if find_spec('mxnet') is None or find_spec('horovod') is None:
        python = REPOSITORY / os.environ.get('MXHYBRID_VENV', '.venv') / 'bin' / 'python'
        if Path(sys.executable) == python or not python.exists():
            sys.exit(command + ': MXNet and Horovod are not installed here: run scripts/install first, then this again')
        os.execv(str(python), [str(python), str(SCRIPTS / command)] + sys.argv[1:])
    sys.path.insert(0, str(REPOSITORY))
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        # As Ctrl-C: otherwise the jobs that the command has started would go on without it.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(importlib.import_module('lab.' + module).main())
