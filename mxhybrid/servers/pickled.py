"""Commands for servers that mxhybrid did not start: pickles.

The only command that a server of MXNet 1.9.1 hands to Python is number 0, a pickle that the server loads and installs
as its optimizer (``python/mxnet/kvstore/kvstore_server.py``).  A pickle can run any code, so whoever reaches the port
of such a server rules it; nothing sent later could change that.  Servers that mxhybrid starts unpickle nothing, see
:mod:`mxhybrid.servers.main`.
"""
import json
import pickle
from typing import Any, Dict

#: The one handler of a stock server, once a command has come.
_handler: Any = None


class _Command:
    """What is :func:`execute`, called with `text`, when it is unpickled."""

    def __init__(self, text: str):
        self._text = text

    def __reduce__(self) -> Any:
        return execute, (self._text,)


def pickled(name: str, arguments: Dict[str, Any]) -> str:
    """A command of :class:`mxhybrid.servers.handler.Handler` as ASCII text."""
    return pickle.dumps(_Command(json.dumps([name, arguments])), 0).decode('ascii')


def execute(text: str) -> Any:
    """Carry out a command in a server; returns the handler, which the server makes its optimizer."""
    from .handler import Handler  # the server's program: workers, which make the pickles, do without

    global _handler
    if _handler is None:
        _handler = Handler()
    _handler.carry_out(*json.loads(text))
    return _handler
