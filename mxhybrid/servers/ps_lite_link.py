"""A worker's own way to the servers by ps-lite, as ``kvstore='dist_sync'`` goes."""
from typing import Any, Callable, List, Optional

import mxnet as mx
import numpy as np

from .client import Client


class PsLiteLink:
    """The way of a worker by its `client`; one without has nothing to push or pull."""

    def __init__(self, client: Optional[Client]):
        self._client: Any = client

    def push(self, table: Any, ids: np.ndarray, rows: np.ndarray, priority: int) -> None:
        """Push rows (collective); returns before the servers answer."""
        order = table.partitioning.order(ids)
        self._client.push(table, table.partitioning.offsets(ids[order]), rows, order, priority)

    def request(self, table: Any, ids: np.ndarray, priority: int) -> Callable[[np.ndarray], None]:
        """Ask for rows; the function returned waits for them and writes them to an array."""
        order = table.partitioning.order(ids)
        arrival = self._client.pull(table, table.partitioning.offsets(ids[order]), priority)
        return lambda result: arrival.write(result, order)

    def request_uncached(self, table: Any, ids: np.ndarray) -> Callable[[np.ndarray], None]:
        """As :meth:`request`: nothing is kept in any case."""
        self.settle()
        return self.request(table, ids, 0)

    def delivers(self, table: Any) -> bool:
        """Whether rows can come to an array without Python."""
        return False

    def deliver(self, table: Any, ids: np.ndarray, array: Any, rows: np.ndarray, priority: int) -> None:
        """Not asked for."""
        raise NotImplementedError

    def deliver_copies(self, table: Any, ids: np.ndarray, outs: List[Any], priority: int) -> bool:
        """Nothing, see :meth:`delivers`."""
        return False

    def overflows(self, table: Any) -> List[str]:
        """Not asked for: the client looks at what it rounds."""
        raise NotImplementedError

    def settle_deliveries(self, table: Any) -> None:
        """There are none."""

    def settle(self) -> None:
        """Wait until the servers have answered all pushes of this worker."""
        mx.nd.waitall()

    def forget(self, table: Any) -> None:
        """A table is gone: nothing is kept for it."""

    def close(self) -> None:
        """Make no more calls."""
