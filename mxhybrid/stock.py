"""Commands for servers that mxhybrid did not start: pickles.

The only command that a server of MXNet 1.9.1 hands to Python is number 0, a pickle that the server loads and installs
as its optimizer (``python/mxnet/kvstore/kvstore_server.py``).  A pickle can run any code, so whoever reaches the port
of such a server rules it; nothing sent later could change that.  Servers that mxhybrid starts unpickle nothing, see
:mod:`mxhybrid.server`.
"""
import json
import pickle
from typing import Any, Dict

from .handler import execute


class Command:
    """A command that executes in a server when the server unpickles it."""

    #: MXNet's ``KVStore.set_optimizer`` looks at it before it sends an optimizer.
    multi_precision = False

    def __init__(self, name: str, /, **arguments: Any):
        self._text = json.dumps([name, arguments])

    def __reduce__(self):
        return execute, (self._text,)


def pickled(name: str, arguments: Dict[str, Any]) -> str:
    """A command of :class:`mxhybrid.handler.Handler` as ASCII text."""
    return pickle.dumps(Command(name, **arguments), 0).decode('ascii')
