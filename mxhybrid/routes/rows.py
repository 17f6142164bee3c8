"""Rows on their way between the script's row_sparse arrays and a table."""
from typing import Any, Callable, List, Tuple

import numpy as np

from ..lane.row_arrays import read_few_rows
from ..native.arrays import allocate_rows, row_sparse_parts, sum_row_sparse
from ..native.deliveries import Deliveries
from ..servers.partitioning import ROW_OVERHEAD_BYTES
from ..servers.table import Table
from ..telemetry.recorder import AnyRecorder
from . import checks
from .route import ParameterSpec, Route


def sum_devices(arrays: List[Any]) -> Tuple[np.ndarray, np.ndarray]:
    """Return ids (sorted, unique) and rows of the sum of row_sparse arrays, one for each device of this worker."""
    return sum_row_sparse([row_sparse_parts(array) for array in arrays])


def read_gradient(route: ParameterSpec, arrays: List[Any], trace: AnyRecorder) -> Tuple[np.ndarray, np.ndarray]:
    """Return ids and rows as :func:`sum_devices` does; InputError if an id is not a row of the key."""
    with trace.span('merge ' + route.name, 'merge', devices=len(arrays)) as span:
        few = None
        if len(arrays) == 1:
            few = read_few_rows(arrays[0], route.rows, route.width, route.dtype, _expected(route))
        ids, rows = few or sum_devices(arrays)
        span.note(rows=len(ids))
    if few is None:
        checks.row_ids('push', route.name, ids, route.rows)
    return ids, rows


def _expected(route: ParameterSpec) -> int:
    """Return a number of rows that a gradient rarely exceeds: twice the average so far, 0 without any."""
    traffic = route.traffic
    return 2 * traffic.rows // traffic.steps + 1 if traffic.steps else 0


def count_pushed(route: Route, count: int) -> None:
    """Add a push of rows to the servers to the traffic of a route."""
    moved, saved = _bytes_of(route.server_table, count)
    route.traffic.add(rows=count, pushed=moved, saved=saved)


def count_pulled(route: Route, count: int) -> None:
    """Add rows that were pulled from the servers to the traffic of a route."""
    moved, saved = _bytes_of(route.server_table, count)
    route.traffic.add(steps=0, pulled=moved, saved=saved)


def _bytes_of(table: Any, count: int) -> Tuple[int, int]:
    """Return the bytes that rows of a table take on the wire, and the bytes that rounding saves."""
    exact_bytes: int = table.width * table.dtype.itemsize
    return count * (table.row_bytes + ROW_OVERHEAD_BYTES), count * (exact_bytes - table.row_bytes)


def fill_outputs(ids: np.ndarray, fill: Callable[[np.ndarray], None], shape: tuple, dtype: Any, outs: List[Any]
                 ) -> None:
    """Build a row_sparse array, let `fill` write its rows, and copy it to `outs`."""
    array, rows = allocate_rows(ids, shape, dtype)
    fill(rows)
    for out in outs:
        array.copyto(out)


def pull_async(table: Table, ids: np.ndarray, shape: tuple, outs: List[Any], priority: int) -> None:
    """Copy rows of a table to `outs`, as a row_sparse array; returns before they arrive."""
    if len(ids) and table.deliver_copies(ids, outs, priority):
        return
    array, rows = allocate_rows(ids, shape, table.dtype)
    if len(ids):
        table.deliver(ids, array, rows, priority)
    for out in outs:
        array.copyto(out)


def pull_each_async(table: Table, deliveries: Deliveries, id_arrays: List[np.ndarray], shape: tuple,
                     outs: List[Any], priority: int) -> int:
    """Copy different rows of a table to each of `outs`; return the number of rows, of which each is pulled once."""
    union = np.unique(np.concatenate(id_arrays))
    rows = np.empty((len(union), int(np.prod(shape[1:]))), table.dtype)
    allocated = [allocate_rows(ids, shape, table.dtype) for ids in id_arrays]

    def take() -> None:
        fill()
        for ids, (_, view) in zip(id_arrays, allocated):
            np.take(rows, np.searchsorted(union, ids), axis=0, out=view, mode='clip')

    if len(union):
        fill = table.pull_later(union, rows, priority)
        deliveries.put([array for ids, (array, _) in zip(id_arrays, allocated) if len(ids)], take, priority)
    for (array, _), out in zip(allocated, outs):
        array.copyto(out)
    return len(union)
