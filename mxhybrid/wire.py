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

Weights whose rows travel as float16 have three native keys for each partition, for three reasons.  A server merges
pushes by adding them up, so gradients need a key of type float16; for keys of other types than float32 it copies
the whole stored array after every push, unless a flag that it never initialises happens to be false
(``multi_precision_`` in ``kvstore_dist_server.h``), so that key stores one row only and :mod:`mxhybrid.handler`
applies what was pushed elsewhere.  Rows that workers pull are float16 too, but in pairs that pass for float32.  The
third key holds the weights themselves, float32, for all that must be exact; sums of gradients do without it.  The
flag is set where `wire_dtype` is, so servers add in float32.
"""
from typing import Any, Callable, Dict, List, Optional, Tuple

import mxnet as mx
import numpy as np

from .arrays import host_view, row_sparse_parts
from .collective import Collective
from .engine import write_after
from .log import get_logger

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


def packed_width(width: int) -> int:
    """float32 elements that hold `width` float16 ones."""
    return (width + 1) // 2


def unpack(pairs: np.ndarray, width: int) -> np.ndarray:
    """View rows of pairs, float32 and contiguous, as rows of `width` float16 elements."""
    return pairs.view(np.float16)[:, :width]


def pairs_of(values: Callable[[np.ndarray], np.ndarray], width: int) -> Callable[[np.ndarray], np.ndarray]:
    """Rows as pairs of float16, from a function that gives float32 rows."""
    def pairs(ids: np.ndarray) -> np.ndarray:
        result = np.zeros((len(ids), packed_width(width)), np.float32)
        unpack(result, width)[:] = values(ids)
        return result
    return pairs


class OverflowAlarm:
    """Warns, once, when values of one parameter are no longer finite as float16.

    Parameters
    ----------
    name : str
        The parameter.
    """

    def __init__(self, name: str):
        self._name = name
        self._warned = False

    def look(self, values: np.ndarray, what: str, source: Optional[np.ndarray] = None) -> None:
        """Test float16 `values`, described by `what`; those that are not finite in `source` either do not count."""
        if self._warned or all_finite(values):
            return
        if source is not None and not bool((np.isinf(values) & np.isfinite(source)).any()):
            return
        self._warned = True
        logger.warning('%s: %s hold infinity or NaN. wire_dtype=float16 holds up to %g: scale the loss down, as a loss '
                       'scaler does by itself, or leave wire_dtype out; if training diverges without it too, it is '
                       'not the cause', self._name, what, LARGEST)


class Channel:
    """How rows of a table travel.

    Parameters
    ----------
    name : str
        The table, for warnings.
    dtype : numpy dtype
        Of the rows.
    width : int
        Elements of a row.
    keys : tuple of int
        Native keys of the partitions.
    push_keys : tuple of int, optional
        The keys to which float16 rows are pushed; `keys` then hold pairs of float16.  None: rows travel as they are,
        in both directions through `keys`.
    order : Order, optional
        Of tables whose keys show each other's changes.

    Attributes
    ----------
    pushed_as : numpy.dtype
    """

    def __init__(self, name: str, dtype: np.dtype, width: int, keys: Tuple[int, ...],
                 push_keys: Optional[Tuple[int, ...]] = None, order: Optional['Order'] = None):
        self._halves = push_keys is not None
        self._width = width
        self._alarm = OverflowAlarm(name)
        self.keys = keys
        self.push_keys = keys if push_keys is None else push_keys
        self.pushed_as = np.dtype(np.float16) if self._halves else dtype
        self.pulled_width = packed_width(width) if self._halves else width
        self.order = order

    @property
    def row_bytes(self) -> int:
        """Bytes of a row on its way."""
        return self._width * self.pushed_as.itemsize

    def narrow(self, rows: np.ndarray, target: np.ndarray) -> None:
        """Cast rows to what is pushed; 1 to 2 ns per element (NumPy and MXNet take the same time)."""
        if rows is not target:
            target[:] = rows
            self._alarm.look(target, 'gradients pushed', rows)

    def widen(self, rows: np.ndarray) -> np.ndarray:
        """Rows as elements, from rows as pulled."""
        if not self._halves:
            return rows
        halves = unpack(rows, 2 * self.pulled_width)
        self._alarm.look(halves, 'rows pulled')
        return halves[:, :self._width]


class Order:
    """Has pulls wait for pushes to other keys; the native store orders those of one key only.

    Behind every push a row is pulled from each of its keys, and later pulls begin when these rows are here.
    """

    def __init__(self) -> None:
        self._rows: Dict[Tuple[int, ...], List[Any]] = {}

    def pushed(self, native: Any, keys: Tuple[int, ...], arrays: List[Any]) -> None:
        """Take notice of a push of row_sparse `arrays` to `keys`."""
        rows = [mx.nd.sparse.zeros('row_sparse', array.shape, dtype=array.dtype) for array in arrays]
        first = [mx.nd.zeros(1, dtype=np.int64) for _ in arrays]
        native.row_sparse_pull(list(keys), out=rows, row_ids=first)
        self._rows[keys] = rows

    def hold(self, wanted: List[Any]) -> None:
        """Have pulls with the row ids `wanted` wait for all pushes so far."""
        rows = [row for group in self._rows.values() for row in group]
        if rows:
            write_after(rows, wanted)


class HalfSum:
    """Allreduce of float32 arrays of one parameter as float16.

    Parameters
    ----------
    alarm : OverflowAlarm
    """

    def __init__(self, alarm: OverflowAlarm):
        self._alarm = alarm
        self._half: Dict[Any, Any] = {}

    def allreduce_(self, array: Any, collective: Collective, tag: str, priority: int) -> None:
        """Sum `array` over all workers in place; returns before the sum is there."""
        half = self._half.get(array.context)
        if half is None:
            half = self._half[array.context] = mx.nd.empty(array.shape, ctx=array.context, dtype=np.float16)
        elif array.context.device_type == 'cpu':
            # The sum before this one: long there, so looking at it does not wait.
            self._alarm.look(host_view(half).reshape(-1), 'summed gradients of an earlier step')
        array.copyto(half)
        collective.allreduce_(half, tag, priority)
        half.copyto(array)
