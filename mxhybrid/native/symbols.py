"""Operators of MXNet as they stand in a symbol's JSON."""
import ctypes
import functools
from typing import Any

import mxnet as mx
from mxnet.base import _LIB, c_str, check_call

#: Those that make an array of one value, of the attributes ``shape`` and ``dtype``.
CONSTANTS = ('_zeros', '_ones', '_full')


@functools.lru_cache(maxsize=None)
def symbol_function(op: str) -> Any:
    """What makes the symbol of an operator; AttributeError where MXNet has none of this name."""
    found = getattr(mx.sym, op, None) or getattr(mx.sym._internal, op, None)
    if found is not None:
        return found
    # Others are functions of modules under names of their own, mx.sym.linalg.gemm2 of _linalg_gemm2, say, or take only
    # arrays as of NumPy.
    handle = ctypes.c_void_p()
    try:
        check_call(_LIB.NNGetOpHandle(c_str(op), ctypes.byref(handle)))
    except mx.base.MXNetError as error:
        raise AttributeError('MXNet has no operator %s' % op) from error
    return mx.symbol.register._make_symbol_function(handle, 'mxhybrid' + op, 'mxhybrid' + op)
