"""The instructions of a server or scheduler that :mod:`mxhybrid.job.server_processes` started."""
import contextlib
import json
import os
import sys

from ..base import log
from ..base.settings import variable
from ..watchdog.lifeline import Lifeline


def take_instructions() -> str:
    """Wait for the line on standard input that describes the job, and return its secret; end without such a line.

    A line that is written to the standard input, a socket, tells before that this process has imported its modules.
    The line sets ``MXHYBRID_MONITOR`` (host:port of the job monitor) and MXNet's ``DMLC_*`` variables.
    """
    line = ''
    with contextlib.suppress(ConnectionError):  # the worker has ended
        os.write(sys.stdin.fileno(), b'\n')
        line = sys.stdin.readline()
    if not line.endswith('\n'):  # the worker has ended, or needs no servers
        os._exit(0)
    instructions = json.loads(line)
    os.environ.update(instructions['environment'])
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())
    secret: str = instructions['secret']
    return secret


def connect(name: str, secret: str) -> Lifeline:
    """Connect to the job monitor as the process `name`."""
    role = os.environ['MXHYBRID_ROLE']
    host, port = os.environ['MXHYBRID_MONITOR'].rsplit(':', 1)
    log.configure(os.environ[variable('log_level')], '%s, pid %d' % (role, os.getpid()))
    lifeline = Lifeline((host, int(port)), name, -1, float(os.environ[variable('timeout')]), secret)
    os.environ['DMLC_ROLE'] = role
    return lifeline
