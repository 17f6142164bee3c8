"""``python -m mxhybrid.servers.main``: a parameter server of a job under ``horovodrun``.

Only :mod:`mxhybrid.job.server_processes` starts it.

Unlike MXNet's own server it unpickles nothing: it carries out commands that worker 0 has sealed
(:mod:`mxhybrid.messaging.sealed`), and ignores all others with a warning.
"""
import os
from typing import Any, Callable, Optional

# With DMLC_ROLE=server the import would turn this process into a server; main() sets that variable later.
import mxnet as mx

from ..base import log
from ..base.errors import RefusedError
from ..messaging.sealed import Opener
from ..native.stores import serve
from ..watchdog.leaving import leave
from .handler import Handler, server_name
from .instructions import connect, take_instructions

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


def main() -> None:
    """Run the server until all workers have left."""
    secret = take_instructions()
    lifeline = connect(server_name(), secret)
    handler = Handler(lifeline, secret, os.environ['DMLC_NODE_HOST'])
    store = mx.kv.create('dist')
    serve(store, Controller(Opener(secret), handler, store.set_optimizer))
    leave(last_words=lifeline.bye, status=0)  # a crash of native code at exit would look like a failure


if __name__ == '__main__':
    main()
