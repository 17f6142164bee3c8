"""The link of a worker to the servers by ps-lite, as with ``kvstore='dist_sync'``."""
from typing import Any, Callable, Optional

import mxnet as mx
import numpy as np

from .client import Client


class PsLiteLink:
    """The link of a worker by its `client`; a worker without a client pushes and pulls nothing."""

    def __init__(self, client: Optional[Client]):
        self._client: Any = client

    def push(self, table: Any, ids: np.ndarray, rows: np.ndarray, priority: int, exact: bool = False) -> None:
        """Push rows (collective); returns before the servers answer.  The table has keys for rows that are not rounded.
        """
        order = table.partitioning.order(ids)
        self._client.push(table, table.partitioning.offsets(ids[order]), rows, order, priority)

    def request(self, table: Any, ids: np.ndarray, priority: int, ahead: int = 0) -> Callable[[np.ndarray], None]:
        """Request rows; the function returned waits for them and writes them to an array.

        `ahead` is 0: on this link tables have no staleness.
        """
        order = table.partitioning.order(ids)
        return self._client.pull(table, table.partitioning.offsets(ids[order]), order, priority)

    def request_uncached(self, table: Any, ids: np.ndarray) -> Callable[[np.ndarray], None]:
        """Request rows like :meth:`request`: this link caches no rows."""
        self.settle()
        return self.request(table, ids, 0)

    def settle_deliveries(self, table: Any) -> None:
        """Wait for deliveries: this link has none."""

    def settle(self) -> None:
        """Wait until the servers have answered all pushes of this worker."""
        mx.nd.waitall()

    def forget(self, table: Any) -> None:
        """Forget a table: this link keeps nothing for it."""

    def close(self) -> None:
        """Close the link; it holds nothing."""
