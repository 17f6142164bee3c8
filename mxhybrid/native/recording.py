"""What MXNet's autograd knows of an array."""
import ctypes
from typing import Any

from mxnet.base import _LIB, check_call


def is_recorded(array: Any) -> bool:
    """Whether gradients may go back to an array: it has a gradient of its own, or was computed from what has one while
    that was recorded.
    """
    symbol = ctypes.c_void_p()
    if _LIB.MXAutogradGetSymbol(array.handle, ctypes.byref(symbol)):  # an error: it is of no graph
        return False
    check_call(_LIB.NNSymbolFree(symbol))
    return True


def has_gone_back(array: Any) -> bool:
    """Whether a backward pass, that is under way or done, has given an array a gradient since :func:`expect`."""
    return bool(array._fresh_grad)


def expect(array: Any) -> None:
    """From now on a gradient of an array is a new one."""
    array._fresh_grad = False
