"""``python -m mxhybrid.servers.main``: a parameter server or the scheduler of a job under ``horovodrun``.

Started by :mod:`mxhybrid.job.server_processes`, never by hand.  Reads ``MXHYBRID_ROLE`` (server or scheduler),
``MXHYBRID_MONITOR`` (host:port of the job monitor), ``MXHYBRID_SECRET`` (the job's) and MXNet's ``DMLC_*`` variables.

Unlike MXNet's own, such a server unpickles nothing: it carries out commands that worker 0 has sealed
(:mod:`mxhybrid.base.sealed`), and ignores all others but for a line in the log.
"""
import ctypes
import os
from typing import Any, Callable, Optional

# MXNet turns a process into a server while it is imported if DMLC_ROLE says so; here it comes later.
import mxnet as mx

from ..base import log
from ..base.errors import RefusedError
from ..base.sealed import Opener
from ..base.settings import variable
from ..native.stores import serve
from ..watchdog.leaving import leave
from ..watchdog.lifeline import Lifeline
from .handler import Handler, server_name

logger = log.get_logger(__name__)


class Controller:
    """What MXNet calls with commands not its own; the job's first installs the handler as the server's optimizer."""

    def __init__(self, opener: Opener, handler: Handler, install: Callable[[Handler], None]):
        self._opener, self._handler = opener, handler
        self._install: Optional[Callable[[Handler], None]] = install
        self._warn = log.Sparingly(logger)

    def __call__(self, head: int, body: bytes, _: Any) -> None:
        try:
            name, arguments = self._opener.open(body)
        except RefusedError as error:
            self._warn('ignoring a command from a stranger: %s', error)
            return
        self._handler.carry_out(name, arguments)
        if self._install is not None:
            try:
                self._install(self._handler)
            except BaseException:
                self._handler.die('installation as optimizer')
            self._install = None


def take_from_environment(name: str) -> str:
    """Value of an environment variable, which is then gone: for processes that this one starts, and from ``/proc``."""
    value = os.environ[name]
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    ctypes.memset(libc.getenv(name.encode()), ord('-'), len(os.fsencode(value)))
    del os.environ[name]
    return value


def main() -> None:
    """Be the server or the scheduler until the workers have all left."""
    secret = take_from_environment('MXHYBRID_SECRET')
    role = os.environ['MXHYBRID_ROLE']
    host, port = os.environ['MXHYBRID_MONITOR'].rsplit(':', 1)
    name = server_name() if role == 'server' else 'the scheduler (pid %d)' % os.getpid()
    log.configure(os.environ[variable('log_level')], '%s, pid %d' % (role, os.getpid()))
    lifeline = Lifeline((host, int(port)), name, -1, float(os.environ[variable('timeout')]), secret)
    os.environ['DMLC_ROLE'] = role
    store = mx.kv.create('dist')
    if role == 'server':
        handler = Handler(lifeline, secret, os.environ['DMLC_NODE_HOST'])
        serve(store, Controller(Opener(secret), handler, store.set_optimizer))
    else:
        serve(store, lambda head, body, _: None)  # no commands come to the scheduler
    leave(last_words=lifeline.bye, status=0)  # native code that crashes at exit would look like a death


if __name__ == '__main__':
    main()
