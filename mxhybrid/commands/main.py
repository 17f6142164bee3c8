"""The command ``mxhybrid``: runs a subcommand.

A subcommand is a module with ``add_arguments``, and with ``run`` that returns the exit status.  ``mxhybrid doctor`` and
``python -m mxhybrid.commands.doctor`` are the same.  Every module of this folder can be imported without MXNet, Horovod
or NumPy, except for the programs of jobs, :mod:`~mxhybrid.commands.sanity` and
:mod:`~mxhybrid.commands.checks.try_joining`.
"""
import argparse
import contextlib
import importlib
import os
import signal
import sys
from typing import Any, List, Optional

from .. import __version__
from ..base.errors import CheckpointError, InputError, SettingError
from ..base.launcher import is_worker
from . import console

#: Modules of subcommands, in the order in which help lists them.
COMMANDS = ('run', 'doctor', 'selftest', 'calibrate', 'plan', 'report', 'partitions', 'checkpoint', 'env')

_EPILOG = """\
check a new installation:
  mxhybrid doctor                               look for missing or broken software and wrong settings
  mxhybrid selftest -np 2                       run small jobs through every launcher, and check their results
  horovodrun -np 4 -H hostA:2,hostB:2 mxhybrid doctor       check all hosts of a job
"""


def _new_parser(command: Any, make: Any, *args: Any, **kwargs: Any) -> argparse.ArgumentParser:
    """Return the parser of a subcommand; its help is the docstring of the subcommand's module."""
    parser = make(*args, description=(command.__doc__ or '').strip(),
                  formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)
    command.add_arguments(parser)
    return parser


def run_alone(name: str, arguments: Optional[List[str]] = None) -> int:
    """Run one subcommand as ``python -m mxhybrid.commands.NAME`` does; returns the exit status."""
    command = importlib.import_module('mxhybrid.commands.' + name)
    parser = _new_parser(command, argparse.ArgumentParser, prog='python -m ' + command.__name__)
    return _guarded(name, command.run, parser.parse_args(arguments))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command."""
    parser = argparse.ArgumentParser(prog='mxhybrid', description="Tools for kvstore='hybrid' of Apache MXNet.",
                                     epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--version', action='version', version='mxhybrid ' + __version__)
    subparsers = parser.add_subparsers(title='commands', metavar='COMMAND', dest='command')
    for name in COMMANDS:
        command = importlib.import_module('mxhybrid.commands.' + name)
        summary = (command.__doc__ or '').strip().partition('\n')[0].rstrip('.')
        _new_parser(command, subparsers.add_parser, name, help=summary).set_defaults(function=command.run)
    return parser


def main(arguments: Optional[List[str]] = None) -> int:
    """Run a command line, by default that of this process.

    Returns the exit status: 0 for success, 1 for a failure, 2 for a wrong command line, 128 + n after signal n.
    """
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 2
    return _guarded(options.command, options.function, options)


def _guarded(name: str, run: Any, options: argparse.Namespace) -> int:
    if not is_worker():
        return _serve()
    if sys.stdout is None:  # it was closed
        sys.stdout = open(os.devnull, 'w')
    try:
        return run(options)
    except KeyboardInterrupt:
        sys.stderr.write('mxhybrid: interrupted\n')
        return 128 + signal.SIGINT
    except BrokenPipeError:  # `mxhybrid report file | head`
        console.drop_output()
        return 128 + signal.SIGPIPE
    except (InputError, SettingError, CheckpointError) as error:
        # All workers of a job raise one.  Other errors reach the job's exception hook, which tells all workers.
        sys.stderr.write('mxhybrid %s: %s\n' % (name, error))
        return 1


def _serve() -> int:
    """Serve until the job ends, as a server or scheduler of launch.py: importing MXNet does that."""
    with contextlib.suppress(ImportError, OSError):  # the workers of this host report what is wrong
        importlib.import_module('mxnet')
    return 0
