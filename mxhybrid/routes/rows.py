"""Rows of row_sparse arrays on their way between a script's arrays and a table."""
from typing import Any, Callable, List, Tuple

import numpy as np

from ..lane.row_arrays import read_few_rows
from ..native.arrays import allocate_rows, row_sparse_parts, sum_row_sparse
from ..native.deliveries import Deliveries
from ..servers.partitioning import ROW_OVERHEAD_BYTES
from ..telemetry.recorder import AnyRecorder
from . import checks
from .route import Identity
from .wire import ServerRows


def sum_devices(arrays: List[Any]) -> Tuple[np.ndarray, np.ndarray]:
    """Sum the row_sparse arrays of this worker's devices to ids (sorted, unique) and rows."""
    return sum_row_sparse([row_sparse_parts(array) for array in arrays])


def read_gradient(route: Identity, arrays: List[Any], trace: AnyRecorder) -> Tuple[np.ndarray, np.ndarray]:
    """As :func:`sum_devices`, for a key in which all ids have to be rows."""
    with trace.span('merge ' + route.name, 'merge', devices=len(arrays)) as span:
        few = None
        if len(arrays) == 1:
            few = read_few_rows(arrays[0], route.rows, route.width, route.dtype, _expected(route))
        ids, rows = few or sum_devices(arrays)
        span.note(rows=len(ids))
    if few is None:
        checks.row_ids('push', route.name, ids, route.rows)
    return ids, rows


def _expected(route: Identity) -> int:
    """Rows that a gradient hardly has more than: twice those of the ones before, if there were any."""
    traffic = route.traffic
    return 2 * traffic.rows // traffic.steps + 1 if traffic.steps else 0


def wire_bytes(count: int, table: ServerRows) -> int:
    """Bytes that `count` rows of a table take on the wire."""
    return count * (table.row_bytes + ROW_OVERHEAD_BYTES)


def write_now(ids: np.ndarray, fill: Callable[[np.ndarray], None], shape: tuple, dtype: Any, outs: List[Any]) -> None:
    """Build a row_sparse array, let `fill` write its rows, and copy it to `outs`."""
    array, rows = allocate_rows(ids, shape, dtype)
    fill(rows)
    for out in outs:
        array.copyto(out)


def write_later(table: ServerRows, ids: np.ndarray, shape: tuple, outs: List[Any], priority: int) -> None:
    """Copy a row_sparse array of a table's rows to `outs`; returns before they are there."""
    if len(ids) and table.deliver_copies(ids, outs, priority):
        return
    array, rows = allocate_rows(ids, shape, table.dtype)
    if len(ids):
        table.deliver(ids, array, rows, priority)
    for out in outs:
        array.copyto(out)


def write_each_later(table: ServerRows, deliveries: Deliveries, wanted: List[np.ndarray], shape: tuple,
                     outs: List[Any], priority: int) -> int:
    """Copy other rows of a table to each of `outs`, asking for each row once; returns how many these are."""
    union = np.unique(np.concatenate(wanted))
    rows = np.empty((len(union), int(np.prod(shape[1:]))), table.dtype)
    made = [allocate_rows(ids, shape, table.dtype) for ids in wanted]

    def take() -> None:
        fill()
        for ids, (_, view) in zip(wanted, made):
            np.take(rows, np.searchsorted(union, ids), axis=0, out=view, mode='clip')

    if len(union):
        fill = table.pull_later(union, rows, priority)
        deliveries.put([array for ids, (array, _) in zip(wanted, made) if len(ids)], take, priority)
    for (array, _), out in zip(made, outs):
        array.copyto(out)
    return len(union)
