"""A job of one process: MXNet's own store does the work."""
from typing import Any, Dict, List, Set

import mxnet as mx
import numpy as np
from mxnet.kvstore import KVStore

from . import files
from .arrays import make_row_sparse
from .routes import Route, merge, rows_of


class Local(Route):
    """A parameter in a job of one process."""

    kind = 'local'


class OneProcess:
    """Backend of a store in a job of one process; every method serves one key.

    Attributes
    ----------
    routes : dict
        :class:`Local` by key.
    counts_rows : bool
        Whether to count pushed rows, which waits for the gradients; set by the store.
    """

    #: Nothing travels, so nothing overflows on the way.
    largest_gradient = float('inf')

    def __init__(self) -> None:
        self.routes: Dict[Any, Route] = {}
        self.counts_rows = False
        self.native: KVStore = mx.kv.create('device')

    @property
    def updater(self) -> Any:
        """The updater of the store, None without an optimizer."""
        return self.native._updater

    def may_init(self, key: Any) -> bool:
        """Whether a key is new."""
        return key not in self.routes

    def init(self, call: str, key: Any, name: str, value: Any, outs: List[Any], priority: int) -> None:
        """Set a key's initial value."""
        if value.stype == 'row_sparse':
            # MXNet's sparse optimizers want every row stored, also those of zeros that tostype left out.
            everything = np.arange(value.shape[0], dtype=np.int64)
            value = make_row_sparse(everything, rows_of(value)(everything), value.shape)
            self.native.init(key, value)
            if outs:  # which MXNet's own broadcast would leave untouched
                self.native.pull(key, outs, priority, ignore_sparse=False)
        elif outs:
            self.native.broadcast(key, value, outs, priority)
        else:
            self.native.init(key, value)
        self.routes[key] = Local(key, name, value)

    def push(self, route: Route, arrays: List[Any], priority: int) -> None:
        """Sum the devices' arrays into the key."""
        if self.counts_rows and arrays[0].stype == 'row_sparse':
            route.traffic.add(steps=0, rows=len(merge(arrays)[0]))
        self.native.push(route.key, arrays, priority)

    def pull(self, route: Route, outs: List[Any], priority: int, ignore_sparse: bool) -> None:
        """Write the key's value to `outs`."""
        self.native.pull(route.key, outs, priority, ignore_sparse)

    def pushpull(self, route: Route, arrays: List[Any], outs: List[Any], priority: int) -> None:
        """Push, then pull."""
        self.native.pushpull(route.key, arrays, outs, priority)

    def pull_rows(self, route: Route, wanted: List[np.ndarray], outs: List[Any], priority: int) -> None:
        """Write rows to `outs`."""
        self.native.row_sparse_pull(route.key, outs, priority, [mx.nd.from_numpy(ids) for ids in wanted])

    def prefetch(self, route: Route, ids: np.ndarray, priority: int, after_push: bool) -> None:
        """All rows are here."""

    def repartition(self, route: Route, partitions: int) -> None:
        """Nothing is cut here."""

    def set_optimizer(self, optimizer: Any) -> None:
        """Update on the store from now on."""
        self.native.set_optimizer(optimizer)

    def save_states(self, fname: str, dump_optimizer: bool) -> None:
        """Write the optimizer state."""
        files.write_atomically(fname, self.native._updater.get_states(dump_optimizer))

    def load_states(self, fname: str) -> None:
        """Read the optimizer state."""
        self.native.load_optimizer_states(fname)

    def attach(self, params: Dict[int, List[Any]], keeps_dense: bool) -> None:
        """Nobody to agree with."""

    def adopt(self, other: 'OneProcess', keys_set: Set[Any]) -> None:
        """Begin anew, since a Trainer initialises all keys from its parameters; nothing is taken over.

        A store that was passed as an instance is given again, and gets a new store of MXNet's.
        """
        if other is self:
            updater = self.updater
            self.native = mx.kv.create('device')
            self.routes.clear()
            if updater is not None:
                self.native.set_optimizer(updater.optimizer)

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true on any worker."""
        return flag

    def barrier(self) -> None:
        """Nobody to wait for."""
