"""Operators of MXNet as they stand in a symbol's JSON."""
from typing import Any

import mxnet as mx

#: Those that make an array of one value, of the attributes ``shape`` and ``dtype``.
CONSTANTS = ('_zeros', '_ones', '_full')


def symbol_function(op: str) -> Any:
    """What makes the symbol of an operator."""
    return getattr(mx.sym, op, None) or getattr(mx.sym._internal, op)
