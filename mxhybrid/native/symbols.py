"""Operators of MXNet by their names in the JSON of a symbol."""
import ctypes
import functools
from typing import Any, Tuple

import mxnet as mx
from mxnet.base import _LIB, c_str, check_call

from .last_error import expected_errors

#: Operators that make an array of one value, with the attributes ``shape`` and ``dtype``.
CONSTANTS = ('_zeros', '_ones', '_full')


@functools.lru_cache(maxsize=None)
def symbol_function(op: str) -> Any:
    """Return the function that makes the symbol of an operator; AttributeError if MXNet has no such operator."""
    function = getattr(mx.sym, op, None) or getattr(mx.sym._internal, op, None)
    if function is not None:
        return function
    # Other operators have functions under other names, as _linalg_gemm2 has mx.sym.linalg.gemm2, or only functions for
    # NumPy arrays.
    handle = ctypes.c_void_p()
    try:
        check_call(_LIB.NNGetOpHandle(c_str(op), ctypes.byref(handle)))
    except mx.base.MXNetError as error:
        raise AttributeError('MXNet %s has no operator %s' % (mx.__version__, op)) from error
    return mx.symbol.register._make_symbol_function(handle, 'mxhybrid' + op, 'mxhybrid' + op)


def is_differentiable(symbol: Any) -> bool:
    """Return whether MXNet can compile a graph with its backward pass, in which gradients go back to all variables."""
    with expected_errors():
        try:
            mx.nd.CachedOp(symbol, [])
        except mx.base.MXNetError as error:
            return 'non-differentiable' not in str(error)
    return True


@functools.lru_cache(maxsize=None)
def has_gradient(op: str, inputs: int, attrs: Tuple[Tuple[str, str], ...]) -> bool:
    """Return whether MXNet can compile a graph in which a gradient goes back to an operator with these attributes."""
    return is_differentiable(symbol_function(op)(*[mx.sym.var('input%d' % number) for number in range(inputs)],
                                                 **dict(attrs)))
