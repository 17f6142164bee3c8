"""``python -m mxhybrid.server``: a parameter server or the scheduler of a job under ``horovodrun``.

Started by :mod:`mxhybrid.processes`, never by hand.  Reads ``MXHYBRID_ROLE`` (server or scheduler),
``MXHYBRID_MONITOR`` (host:port of the job monitor) and MXNet's ``DMLC_*`` variables.
"""
import ctypes
import os
import signal
import sys

# MXNet turns a process into a server while it is imported if DMLC_ROLE says so; here it comes later.
import mxnet as mx
from mxnet.kvstore.kvstore_server import KVStoreServer

from . import handler
from .lifeline import Lifeline

#: prctl option: signal to this process when its parent dies (linux/prctl.h).
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process when the one that started it dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit('the process that started this server is gone')


def main() -> None:
    """Serve until the workers have all left."""
    die_with_parent(int(os.environ['MXHYBRID_PARENT']))
    role = os.environ['MXHYBRID_ROLE']
    host, port = os.environ['MXHYBRID_MONITOR'].rsplit(':', 1)
    name = handler.server_name() if role == 'server' else 'the scheduler (pid %d)' % os.getpid()
    handler.process_lifeline = Lifeline((host, int(port)), name, -1, float(os.environ['MXHYBRID_TIMEOUT']))
    os.environ['DMLC_ROLE'] = role
    KVStoreServer(mx.kv.create('dist')).run()


if __name__ == '__main__':
    main()
