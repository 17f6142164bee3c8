"""The link of a worker to the servers by ps-lite, as with ``kvstore='dist_sync'``.

Rows are addressed by their offsets (:meth:`mxhybrid.servers.partitioning.Partitioning.offsets`), which number
one partition after the other, so that the rows of a partition are a slice.
"""
import threading
from typing import Any, Callable, List

import mxnet as mx
import numpy as np

from ..base.errors import JobError
from ..native.arrays import allocate_rows, row_sparse_parts
from ..native.forks import fork_guard
from ..telemetry.recorder import OFF, AnyRecorder


class PsLiteLink:
    """The link by a native ``dist_sync`` store, which one thread at a time may call: the one that holds `lock`.

    A worker without such a store, None, pushes and pulls nothing.  `requests` counts the partitions pushed and pulled
    so far: ps-lite keeps 8 bytes for each until the process ends (``Customer::NewRequest``).
    """

    def __init__(self, native: Any, trace: AnyRecorder = OFF):
        self.native = native
        self.requests = 0
        self._trace: Any = trace
        self.lock = threading.Lock()

    def push(self, table: Any, ids: np.ndarray, rows: np.ndarray, priority: int, exact: bool = False) -> None:
        """Push rows (collective), which are read before this returns.  Rows that must be `exact` have keys for that."""
        order = table.partitioning.order(ids)
        with self._trace.span('cut ' + table.name, 'merge'), fork_guard:
            arrays = cut(table, table.partitioning.offsets(ids[order]), rows, order)
        wire_format = table.wire_format
        with self._trace.span('hand over ' + table.name, 'servers'), fork_guard, self.lock:
            self.native.push(list(wire_format.push_keys), arrays, priority)
            self.requests += len(arrays)
            if wire_format.ordering is not None:
                wire_format.ordering.pushed(self.native, wire_format.push_keys, arrays)

    def request(self, table: Any, ids: np.ndarray, priority: int, ahead: int = 0) -> Callable[[np.ndarray], None]:
        """Request rows; the function returned waits for them and writes them to an array.

        `ahead` is 0: on this link tables have no staleness.
        """
        partitioning, wire_format, trace = table.partitioning, table.wire_format, self._trace
        order = partitioning.order(ids)
        offsets = partitioning.offsets(ids[order])
        bounds = partitioning.bounds(offsets)
        keys, outs, row_ids, spans = [], [], [], []
        for part, (start, stop) in enumerate(zip(bounds, bounds[1:])):
            if start == stop:
                continue
            keys.append(wire_format.keys[part])
            outs.append(mx.nd.sparse.zeros('row_sparse', (partitioning.shape(part)[0], wire_format.pulled_width),
                                           dtype=table.dtype, ctx=mx.cpu()))
            row_ids.append(mx.nd.from_numpy(offsets[start:stop] - part * partitioning.stride))
            spans.append((start, stop))
        if keys:
            with fork_guard, self.lock:
                if wire_format.ordering is not None:
                    wire_format.ordering.hold(row_ids)
                self.native.row_sparse_pull(keys, out=outs, row_ids=row_ids, priority=priority)
                self.requests += len(keys)
        span = trace.new_id() if trace.enabled else 0
        if trace.enabled:
            trace.begin('rows of ' + table.name, span, 'servers', {'rows': len(offsets)})

        def write(result: np.ndarray) -> None:
            for (start, stop), out in zip(spans, outs):
                out.wait_to_read()
                with fork_guard:
                    ids, rows = row_sparse_parts(out)
                if len(ids) != stop - start:
                    raise JobError('%s: a server answered a pull of %d rows with %d rows: report this as a bug of '
                                   'mxhybrid' % (table.name, stop - start, len(ids)))
                result[order[start:stop]] = wire_format.widen(rows)
            outs.clear()  # their memory may be large
            if trace.enabled:
                trace.end('rows of ' + table.name, span, 'servers')
        return write

    def request_uncached(self, table: Any, ids: np.ndarray) -> Callable[[np.ndarray], None]:
        """Request rows like :meth:`request`: this link caches no rows."""
        self.settle()
        return self.request(table, ids, 0)

    def settle_deliveries(self, table: Any) -> None:
        """Wait for deliveries: this link has none."""

    def settle(self) -> None:
        """Wait until the servers have answered all pushes of this worker."""
        mx.nd.waitall()

    def close(self) -> None:
        """Close the link; it holds nothing."""


def cut(table: Any, offsets: np.ndarray, rows: np.ndarray, order: np.ndarray) -> List[Any]:
    """Return a row_sparse array for each partition; the rows at `order` belong to `offsets` (sorted, unique)."""
    partitioning = table.partitioning
    bounds = partitioning.bounds(offsets)
    arrays = []
    for part, (start, stop) in enumerate(zip(bounds, bounds[1:])):
        if start == stop:
            arrays.append(table.empty(part))
            continue
        array, target = allocate_rows(offsets[start:stop] - part * partitioning.stride, partitioning.shape(part),
                                      table.wire_format.pushed_as)
        view = target if target.dtype == table.dtype else np.empty(target.shape, table.dtype)
        if rows.dtype == view.dtype:
            np.take(rows, order[start:stop], axis=0, out=view, mode='clip')
        else:
            view[:] = rows[order[start:stop]]
        table.wire_format.narrow(view, target)
        arrays.append(array)
    return arrays
