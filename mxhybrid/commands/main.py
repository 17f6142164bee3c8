"""Finds the subcommand of ``mxhybrid`` that was asked for: a module that has ``add_arguments`` and ``run``.

``mxhybrid doctor`` and ``python -m mxhybrid.commands.doctor`` are the same.  Everything in this folder but the jobs
:mod:`~mxhybrid.commands.sanity` and :mod:`~mxhybrid.commands.checks.try_joining` works without MXNet, Horovod or NumPy.
"""
import argparse
import importlib
import os
import signal
import sys
from typing import Any, List, Optional

from .. import __version__
from ..base.launcher import is_worker
from . import console

#: Modules of subcommands, in the order in which help lists them.
COMMANDS = ('doctor', 'selftest', 'calibrate', 'plan', 'report', 'plot', 'env')

_EPILOG = """\
a first look at a new installation:
  mxhybrid doctor                               what is installed, and what would not work
  mxhybrid selftest -np 2                       small jobs through every launcher, results checked
  horovodrun -np 4 -H hostA:2,hostB:2 mxhybrid doctor       the same look at all hosts of a job
"""


def _new_parser(command: Any, make: Any, *args: Any, **kwargs: Any) -> argparse.ArgumentParser:
    """A parser for one subcommand, whose help is the docstring of its module."""
    parser = make(*args, description=(command.__doc__ or '').strip(),
                  formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)
    command.add_arguments(parser)
    return parser


def run_alone(name: str, arguments: Optional[List[str]] = None) -> int:
    """Run one subcommand as ``python -m mxhybrid.commands.NAME`` does; returns the exit status."""
    command = importlib.import_module('mxhybrid.commands.' + name)
    parser = _new_parser(command, argparse.ArgumentParser, prog='python -m ' + command.__name__)
    return _guarded(command.run, parser.parse_args(arguments))


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command."""
    parser = argparse.ArgumentParser(prog='mxhybrid', description="Tools around kvstore='hybrid' for Apache MXNet.",
                                     epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--version', action='version', version='mxhybrid ' + __version__)
    subparsers = parser.add_subparsers(title='commands', metavar='COMMAND', dest='command')
    for name in COMMANDS:
        command = importlib.import_module('mxhybrid.commands.' + name)
        summary = (command.__doc__ or '').strip().partition('\n')[0].rstrip('.')
        _new_parser(command, subparsers.add_parser, name, help=summary).set_defaults(function=command.run)
    return parser


def main(arguments: Optional[List[str]] = None) -> int:
    """Run a command line, by default this process's.

    Returns the exit status: 0 all is well, 1 something is wrong, 2 the command line is, 128 + n after signal n.
    """
    parser = make_parser()
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.print_help()
        return 2
    return _guarded(given.function, given)


def _guarded(run: Any, given: argparse.Namespace) -> int:
    if not is_worker():
        return _serve()
    if sys.stdout is None:  # it was closed
        sys.stdout = open(os.devnull, 'w')
    try:
        return run(given)
    except KeyboardInterrupt:
        sys.stderr.write('mxhybrid: interrupted\n')
        return 128 + signal.SIGINT
    except BrokenPipeError:  # `mxhybrid report file | head`
        console.drop_output()
        return 128 + signal.SIGPIPE
    except console.OutputError as error:  # no other: of a job's failures its own hook of exceptions tells all workers
        sys.stderr.write('mxhybrid: %s\n' % error)
        return 1


def _serve() -> int:
    """As a server or scheduler of launch.py: importing MXNet serves until the job ends."""
    try:
        importlib.import_module('mxnet')
    except (ImportError, OSError):
        pass  # the workers of this host say what is wrong with it
    return 0
