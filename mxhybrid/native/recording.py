"""Reads the record of MXNet's autograd about an array."""
import ctypes
from typing import Any

from mxnet.base import _LIB
from mxnet.symbol import Symbol

from .last_error import expected_errors


def wants_gradient(array: Any) -> bool:
    """Return whether an array has a gradient, or was computed from arrays with gradients while that was recorded.

    The time grows with the number of recorded operators.
    """
    handle = ctypes.c_void_p()
    with expected_errors():
        if _LIB.MXAutogradGetSymbol(array.handle, ctypes.byref(handle)):  # an error means that nothing was recorded
            return False
    # By the names of imperative.cc of MXNet 1.9.1: arrays without a gradient are null0, null1 and so on.
    return any(name.startswith('var') for name in Symbol(handle).list_inputs())
