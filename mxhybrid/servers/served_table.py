"""The common part of tables on the servers: the meaning of pushes, the optimizer, and rows that are prefetched."""
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np

from ..comm.float16 import OverflowAlarm
from ..lane.keyed_rows import KeyedRows
from ..lane.row_format import RowFormat
from .cluster import ParameterServers
from .optimized_table import OptimizedTable
from .protocol import CAPTURE, OPTIMIZE
from .row_prefetcher import RowPrefetcher


class ServedTable(OptimizedTable):
    """A table on the servers, whose partitions have `server_keys` in commands.

    `row_format` is the form in which its rows travel by the lane.  With `staleness` pulled rows may lack that number of
    last pushes of other workers while the servers update them.
    """

    server_keys: Sequence[int]

    def __init__(self, servers: ParameterServers, name: str, width: int, dtype: Any,
                 row_format: RowFormat = RowFormat.EXACT, staleness: int = 0):
        super().__init__(name, width, dtype)
        self.servers, self.row_format, self.staleness = servers, row_format, staleness
        #: The number of the table in its job, equal on all workers.
        self.index = next(servers.table_numbers)
        #: The tables through which its rows travel, and this one.
        self.family = [self]
        #: The meaning of pushes, see :mod:`mxhybrid.servers.protocol`.
        self.mode = CAPTURE
        self._prefetcher = RowPrefetcher(self._request, width, self.dtype, lambda: self.lag)
        self._alarm = OverflowAlarm(name)

    def _request(self, ids: np.ndarray, priority: int, ahead: int = 0) -> Callable[[np.ndarray], None]:
        return self.servers.link.request(self, ids, priority, ahead)

    @property
    def lag(self) -> int:
        """The staleness of a pull of this thread at this time."""
        return self.staleness if self.mode == OPTIMIZE and not self.servers.pulls_fresh else 0

    def lags(self) -> List[int]:
        """Return the number of rows that workers of this host pulled, by their lag; [] without staleness."""
        lane = self.servers.lane
        return lane.lags(self) if lane is not None and self.staleness else []

    def collect(self) -> None:
        """Wait for rows that were prefetched, or that another thread writes."""
        self._prefetcher.collect()
        self.servers.link.settle_deliveries(self)

    def _push(self, ids: np.ndarray, rows: np.ndarray, priority: int, exact: bool = False) -> None:
        if not self.staleness:
            # Needed if the caller has not done it: after a push the host drops the rows that it caches.
            self._prefetcher.settle()
            self.servers.link.settle_deliveries(self)
        self.servers.link.push(self, ids, rows, priority, exact)

    @staticmethod
    def _deliver(tables: Sequence['ServedTable'], rows: Sequence[KeyedRows], array: Any, priority: int) -> None:
        """Request rows of several tables, which the engine writes to the memory of `array`."""
        for table in tables:
            table._warn()  # about rows before these: the check does not wait
        servers, lane = tables[0].servers, tables[0].servers.lane
        # A trace records when rows arrive, which operations of the engine do not tell.
        if (lane is not None and not servers.trace.enabled
                and not any(table._prefetcher.has_rows() for table in tables)):
            for table in tables:
                table._prefetcher.mark_pulled()
            lane.deliver_tables(tables, rows, array, priority)
            return
        for table, part in zip(tables, rows):
            servers.deliveries.put([array], table._pull_later(part, priority), priority)

    def _pull_later(self, part: KeyedRows, priority: int) -> Callable[[], None]:
        """Request rows; the function returned waits for them and writes them."""
        if part.positions is None:
            return self._prefetcher.pull_later(part.keys, part.rows.reshape(-1, self.width), priority)
        rows = np.empty((len(part.keys), self.width), self.dtype)
        wait = self._prefetcher.pull_later(part.keys, rows, priority)

        def write() -> None:
            wait()
            part.write(rows)
        return write

    def _warn(self) -> None:
        """Warn of values that did not fit into float16 on the lane so far."""
        lane = self.servers.lane if self.row_format is RowFormat.FLOAT16 else None
        for values in lane.overflows(self) if lane is not None else ():
            self._alarm.sound(values)

    def set_mode(self, mode: str) -> None:
        """Set the meaning of later pushes to this table on the servers."""
        self.mode = mode
        self.servers.command('mode', keys=self.server_keys, mode=mode)

    def _tell_optimizer(self, reference: str, attributes: Dict[str, Any], count: Optional[int]) -> None:
        self.servers.command('optimizer', table=self.name, keys=self.server_keys, name=reference, attributes=attributes,
                             count=count)
        self.mode = OPTIMIZE

    def _drop_optimizer(self) -> None:
        self.servers.command('forget_state', table=self.name, keys=self.server_keys)
