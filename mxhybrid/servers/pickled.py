"""Commands, as pickles, for servers that mxhybrid did not start.

The only command that a server of MXNet 1.9.1 passes to Python is number 0, a pickle that the server loads and installs
as its optimizer (``python/mxnet/kvstore/kvstore_server.py``).  A pickle can run any code, so any program that reaches
the port of such a server controls it, and no later command could change that.  Servers that mxhybrid starts unpickle
nothing, see :mod:`mxhybrid.servers.main`.
"""
import json
import pickle
from typing import Any, Dict

#: The single handler of a stock server, once a command has arrived.
_handler: Any = None


class _Command:
    """An object that, when it is unpickled, calls :func:`execute` with `text`."""

    def __init__(self, text: str):
        self._text = text

    def __reduce__(self) -> Any:
        return execute, (self._text,)


def pickled(name: str, arguments: Dict[str, Any]) -> str:
    """Return a command for :class:`mxhybrid.servers.handler.Handler` as ASCII text."""
    return pickle.dumps(_Command(json.dumps([name, arguments])), 0).decode('ascii')


def execute(text: str) -> Any:
    """Carry out a command in a server, and return the handler, which the server installs as its optimizer."""
    from .handler import Handler  # imported late: workers, which make the pickles, do not need the server's program

    global _handler
    if _handler is None:
        _handler = Handler()
    _handler.carry_out(*json.loads(text))
    return _handler
