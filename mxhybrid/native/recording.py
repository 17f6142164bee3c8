"""What MXNet's autograd knows of an array."""
import ctypes
from typing import Any

from mxnet.base import _LIB
from mxnet.symbol import Symbol


def wants_gradient(array: Any) -> bool:
    """Whether an array has a gradient of its own, or was computed from what has one while that was recorded; it takes
    longer the more that is.
    """
    handle = ctypes.c_void_p()
    if _LIB.MXAutogradGetSymbol(array.handle, ctypes.byref(handle)):  # an error: nothing was recorded
        return False
    # Names that imperative.cc of MXNet 1.9.1 gives: what has no gradient is null0, null1 and so on.
    return any(name.startswith('var') for name in Symbol(handle).list_inputs())
