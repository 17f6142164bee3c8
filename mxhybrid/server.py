"""``python -m mxhybrid.server``: a parameter server or the scheduler of a job under ``horovodrun``.

Started by :mod:`mxhybrid.processes`, never by hand.  Reads ``MXHYBRID_ROLE`` (server or scheduler),
``MXHYBRID_MONITOR`` (host:port of the job monitor), ``MXHYBRID_SECRET`` (the job's) and MXNet's ``DMLC_*`` variables.

Unlike MXNet's own, such a server unpickles nothing: it carries out commands that worker 0 has sealed
(:mod:`mxhybrid.sealed`), and ignores all others but for a line in the log.
"""
import ctypes
import os
from typing import Any, Callable, Optional

# MXNet turns a process into a server while it is imported if DMLC_ROLE says so; here it comes later.
import mxnet as mx
from mxnet.base import _LIB, check_call

from . import handler, log
from .errors import RefusedError
from .lifeline import Lifeline
from .sealed import Opener

logger = log.get_logger(__name__)

#: How MXNet calls whoever takes commands (``MXKVStoreServerController``).
_CONTROLLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class Controller:
    """What MXNet calls with each command that it does not carry out itself.

    Parameters
    ----------
    opener : Opener
    install : callable
        Makes a handler the optimizer of the server; called once.
    """

    def __init__(self, opener: Opener, install: Callable[[handler.Handler], None]):
        self._opener = opener
        self._install: Optional[Callable[[handler.Handler], None]] = install
        self._warn = log.Sparingly(logger)

    def __call__(self, head: int, body: bytes, _: Any) -> None:
        try:
            name, arguments = self._opener.open(body)
        except RefusedError as error:
            self._warn('ignoring a command from a stranger: %s', error)
            return
        carried_out_by = handler.carry_out(name, arguments)
        if self._install is not None:
            try:
                self._install(carried_out_by)
            except BaseException:
                carried_out_by.die('installation as optimizer')
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
    """Serve until the workers have all left."""
    secret = take_from_environment('MXHYBRID_SECRET')
    role = os.environ['MXHYBRID_ROLE']
    host, port = os.environ['MXHYBRID_MONITOR'].rsplit(':', 1)
    name = handler.server_name() if role == 'server' else 'the scheduler (pid %d)' % os.getpid()
    log.configure(os.environ['MXHYBRID_LOG_LEVEL'], '%s, pid %d' % (role, os.getpid()))
    handler.process_lifeline = Lifeline((host, int(port)), name, -1, float(os.environ['MXHYBRID_TIMEOUT']), secret)
    os.environ['DMLC_ROLE'] = role
    store = mx.kv.create('dist')
    controller = _CONTROLLER(Controller(Opener(secret), store.set_optimizer))
    check_call(_LIB.MXKVStoreRunServer(store.handle, controller, None))
    handler.process_lifeline.bye()
    os._exit(0)  # nothing is left to do, and native code that crashes at exit would look like a death


if __name__ == '__main__':
    main()
