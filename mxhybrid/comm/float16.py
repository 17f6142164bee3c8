"""The setting ``wire_dtype``: values of float32 parameters that travel as float16.

Weights and optimizer state, on servers and in workers, stay float32.  Values are rounded here, with u = 2^-11, and by
at most 2^-25 if a value is smaller than 2^-14:

* rows that are pushed: the sum over the workers of a host, once, by u of it; servers add these sums in float32;
* rows that are pulled, of weights or of summed gradients: once, by u of each element;
* dense gradients, and gradients of tables by allreduce: once by every worker, and at most once by every addition, so a
  sum over N workers has an error of at most ``((1 + u)^N - 1) * sum(|g|) + N * 2^-25``, about N u of the sum of
  magnitudes.

Initial and assigned weights, optimizer state and pulls of whole tables stay exact.  Values beyond 65504 become infinite
and reach the weights like any infinite gradient; a warning names them.
"""
from typing import Any, Callable, Dict, Optional

import mxnet as mx
import numpy as np

from ..base.log import get_logger
from ..native.arrays import host_view, row_sparse_parts

logger = get_logger(__name__)

#: The largest finite float16, and its unit roundoff.
LARGEST = 65504.0
ROUNDOFF = 2.0 ** -11
#: Exponent bits of a float16; all set in infinities and NaNs only.
_EXPONENT = np.uint16(0x7c00)


def dtype_for(dtype: Any, wire_dtype: str) -> np.dtype:
    """Return the type in which values of `dtype` travel with the setting `wire_dtype`: only float32 is changed."""
    return np.dtype(wire_dtype if np.dtype(dtype) == np.float32 else dtype)


def safe_magnitude(workers: int) -> float:
    """Return the largest magnitude of gradients that cannot overflow in a float16 sum over `workers`."""
    return LARGEST / (workers * (1 + ROUNDOFF) ** workers)


def all_finite(half: np.ndarray) -> bool:
    """Return whether all elements of a contiguous float16 array are finite, ten times as fast as ``np.isfinite``."""
    bits = half.view(np.uint16)
    return not bool(((bits & _EXPONENT) == _EXPONENT).any())


def exceeds(grad: Any, largest: float) -> bool:
    """Return whether a float32 gradient, dense or row_sparse, has elements above `largest` in magnitude."""
    if grad.dtype != np.float32:
        return False
    values = host_view(grad) if grad.stype == 'default' else row_sparse_parts(grad)[1]
    return bool(max(values.max(initial=0), -values.min(initial=0)) > largest)


class OverflowAlarm:
    """Warns, once, if values of a parameter are not finite as float16."""

    def __init__(self, name: str):
        self._name = name
        self._warned = False

    def look(self, values: np.ndarray, description: str, source: Optional[np.ndarray] = None) -> None:
        """Check float16 `values`, for a warning with their description; non-finite values of `source` do not count."""
        if self._warned or all_finite(values):
            return
        if source is not None and not bool((np.isinf(values) & np.isfinite(source)).any()):
            return
        self.sound(description)

    def sound(self, description: str) -> None:
        """Warn about values with a description, the first time only."""
        if self._warned:
            return
        self._warned = True
        logger.warning('%s: %s have infinite elements or NaN. float16 holds values up to %g: scale the loss down, as a '
                       'loss scaler does, or leave wire_dtype=float16 out. If training diverges without it, too, '
                       'float16 is not the cause', self._name, description, LARGEST)


class HalfSum:
    """Allreduce of float32 arrays of one parameter as float16."""

    def __init__(self, alarm: OverflowAlarm):
        self._alarm = alarm
        self._half: Dict[Any, Any] = {}

    def allreduce_(self, array: Any, allreduce_: Callable[..., None], tag: str, priority: int) -> None:
        """Sum `array` over all workers in place, by `allreduce_`; returns before the sum is complete."""
        half = self._half.get(array.context)
        if half is None:
            half = self._half[array.context] = mx.nd.empty(array.shape, ctx=array.context, dtype=np.float16)
        elif array.context.device_type == 'cpu':
            # The former sum is complete, so this check does not wait.
            self._alarm.look(host_view(half).reshape(-1), 'summed gradients of an earlier step')
        array.copyto(half)
        allreduce_(half, tag, priority)
        half.copyto(array)
