"""The setting ``wire_dtype``: values of float32 parameters that travel as float16.

What is kept stays float32: weights and optimizer state on servers and in workers.  Where values are rounded, with
u = 2^-11, and 2^-25 at most where a value is smaller than 2^-14:

* rows pushed: the sum over the workers of a host, once, by u of it; servers sum these in float32;
* rows pulled, of weights or of summed gradients: once, by u of each element;
* dense gradients, and those of tables that go by allreduce: once by every worker, and at most once by every addition,
  so a sum over N workers is off by at most ``((1 + u)^N - 1) * sum(|g|) + N * 2^-25``, about N u of the sum of
  magnitudes;
* nothing else: initial and assigned weights, optimizer state and pulls of whole tables stay exact.

Values beyond 65504 become infinite and reach the weights like any infinite gradient; that is warned of.
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


def dtype_for(dtype: Any, wire: str) -> np.dtype:
    """What values of a parameter of `dtype` travel as under the setting `wire`: only float32 is changed."""
    return np.dtype(wire if np.dtype(dtype) == np.float32 else dtype)


def safe_magnitude(workers: int) -> float:
    """Gradients up to this magnitude cannot overflow in a float16 sum over `workers`."""
    return LARGEST / (workers * (1 + ROUNDOFF) ** workers)


def all_finite(half: np.ndarray) -> bool:
    """Whether no element of a contiguous float16 array is infinite or NaN; ten times faster than ``np.isfinite``."""
    bits = half.view(np.uint16)
    return not bool(((bits & _EXPONENT) == _EXPONENT).any())


def exceeds(grad: Any, largest: float) -> bool:
    """Whether a float32 gradient, dense or row_sparse, has elements above `largest` in magnitude."""
    if grad.dtype != np.float32:
        return False
    values = host_view(grad) if grad.stype == 'default' else row_sparse_parts(grad)[1]
    return bool(max(values.max(initial=0), -values.min(initial=0)) > largest)


class OverflowAlarm:
    """Warns, once, when values of one parameter are no longer finite as float16."""

    def __init__(self, name: str):
        self._name = name
        self._warned = False

    def look(self, values: np.ndarray, what: str, source: Optional[np.ndarray] = None) -> None:
        """Test float16 `values`, described by `what`; those that are not finite in `source` either do not count."""
        if self._warned or all_finite(values):
            return
        if source is not None and not bool((np.isinf(values) & np.isfinite(source)).any()):
            return
        self.sound(what)

    def sound(self, what: str) -> None:
        """Warn of `what`, if this is the first time."""
        if self._warned:
            return
        self._warned = True
        logger.warning('%s: %s hold infinity or NaN. wire_dtype=float16 holds up to %g: scale the loss down, as a loss '
                       'scaler does by itself, or leave wire_dtype out; if training diverges without it too, it is '
                       'not the cause', self._name, what, LARGEST)


class HalfSum:
    """Allreduce of float32 arrays of one parameter as float16."""

    def __init__(self, alarm: OverflowAlarm):
        self._alarm = alarm
        self._half: Dict[Any, Any] = {}

    def allreduce_(self, array: Any, allreduce_: Callable[..., None], tag: str, priority: int) -> None:
        """Sum `array` over all workers in place, by `allreduce_`; returns before the sum is there."""
        half = self._half.get(array.context)
        if half is None:
            half = self._half[array.context] = mx.nd.empty(array.shape, ctx=array.context, dtype=np.float16)
        elif array.context.device_type == 'cpu':
            # The sum before this one: long there, so looking at it does not wait.
            self._alarm.look(host_view(half).reshape(-1), 'summed gradients of an earlier step')
        array.copyto(half)
        allreduce_(half, tag, priority)
        half.copyto(array)
