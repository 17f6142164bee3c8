"""``python -m mxhybrid.servers.main``: a parameter server or the scheduler of a job under ``horovodrun``.

Only :mod:`mxhybrid.job.server_processes` starts it.  It reads ``MXHYBRID_ROLE`` (server or scheduler),
``MXHYBRID_MONITOR`` (host:port of the job monitor), ``MXHYBRID_SECRET`` (the job's) and MXNet's ``DMLC_*`` variables.

Unlike MXNet's own server it unpickles nothing: it carries out commands that worker 0 has sealed
(:mod:`mxhybrid.base.sealed`), and ignores all others with a warning.
"""
import ctypes
import os
from typing import Any, Callable, Optional

# With DMLC_ROLE=server the import would turn this process into a server; main() sets that variable later.
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
    """The function that MXNet calls with commands; the first command of the job installs the handler as optimizer."""

    def __init__(self, opener: Opener, handler: Handler, install: Callable[[Handler], None]):
        self._opener, self._handler = opener, handler
        self._install: Optional[Callable[[Handler], None]] = install
        self._warn = log.Sparingly(logger)

    def __call__(self, head: int, body: bytes, _: Any) -> None:
        try:
            name, arguments = self._opener.open(body)
        except RefusedError as error:
            self._warn('ignoring a command that is not from worker 0 of this job: %s', error)
            return
        self._handler.carry_out(name, arguments)
        if self._install is not None:
            try:
                self._install(self._handler)
            except BaseException:
                self._handler.die('installation as optimizer')
            self._install = None


def take_from_environment(name: str) -> str:
    """Return the value of an environment variable and erase it, also in ``/proc``, from where others could read it."""
    value = os.environ[name]
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    ctypes.memset(libc.getenv(name.encode()), ord('-'), len(os.fsencode(value)))
    del os.environ[name]
    return value


def main() -> None:
    """Run the server or the scheduler until all workers have left."""
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
        serve(store, lambda head, body, _: None)  # the scheduler gets no commands
    leave(last_words=lifeline.bye, status=0)  # a crash of native code at exit would look like a failure


if __name__ == '__main__':
    main()
