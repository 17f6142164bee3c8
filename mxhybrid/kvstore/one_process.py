"""The backend for a job of one process: MXNet's own store does the work."""
import contextlib
import os
from typing import Any, Callable, ContextManager, Dict, List, Set, Tuple

import mxnet as mx
import numpy as np
from mxnet.kvstore import KVStore

from ..base import files
from ..base.settings import Settings
from ..base.storage_probe import problem_with, refuse_problems
from ..native.arrays import make_row_sparse, row_reader
from ..native.stores import set_updater, updater_of
from ..routes.route import ParameterSpec
from ..routes.rows import sum_devices


class Local(ParameterSpec):
    """A parameter in a job of one process."""

    kind = 'local'

    def __init__(self, key: Any, name: str, array: Any):
        super().__init__(key, name, array)
        self.sparse = array.stype == 'row_sparse'

    def prefetch(self, ids: np.ndarray, priority: int, after_push: bool) -> None:
        """Do nothing: all rows are here."""

    def repartition(self, partitions: int) -> None:
        """Do nothing: there are no partitions."""


def _write(targets: List[Tuple[Local, List[Any]]], write: Callable[..., Any]) -> None:
    """Call `write` with outputs of each key's dtype, and cast them to those of `targets`: MXNet casts some dtypes only.
    """
    typed_outs = [[out if np.dtype(out.dtype) == route.dtype else out.astype(route.dtype) for out in outs]
                  for route, outs in targets]
    write(*typed_outs)
    for (_, outs), typed in zip(targets, typed_outs):
        for source, out in zip(typed, outs):
            if source is not out:
                source.copyto(out)


class OneProcess:
    """The backend of a store in a job of one process, with the calls of a :class:`.distributed.Distributed`.

    With `counts_rows` it waits for gradients and counts their rows.
    """

    # There are no servers and no other workers, and values do not travel.
    serves_dense_weights = shards_updates = False
    largest_gradient = float('inf')

    def __init__(self, counts_rows: bool, settings: Settings) -> None:
        #: Parameters by key.
        self.routes: Dict[Any, Local] = {}
        self._counts_rows, self._settings = counts_rows, settings
        self.native: KVStore = mx.kv.create('device')

    def storage_for(self, name: str) -> Tuple[str, int]:
        """Return the directory of a dynamic table, '' for memory, and its resident bytes; SettingError for a bad one.
        """
        directory, resident_bytes = self._settings.storage_for(name)
        problem = problem_with(directory) if directory else ''
        refuse_problems(name, directory, [(os.uname().nodename, problem)] if problem else [])
        return directory, resident_bytes

    @property
    def updater(self) -> Any:
        """The updater of the store, None without an optimizer."""
        return updater_of(self.native)

    def set_updater(self, updater: Any) -> None:
        set_updater(self.native, updater)

    def may_init(self, key: Any) -> bool:
        return key not in self.routes

    def init(self, call: str, key: Any, name: str, value: Any, outs: List[Any], priority: int) -> None:
        if value.stype == 'row_sparse':
            # MXNet's sparse optimizers need every row stored, also rows of zeros that tostype left out.
            everything = np.arange(value.shape[0], dtype=np.int64)
            value = make_row_sparse(everything, row_reader(value)(everything), value.shape)
            self.native.init(key, value)
            if outs:  # MXNet's own broadcast would leave them untouched
                self.pull(Local(key, name, value), outs, priority, ignore_sparse=False)
        elif outs:
            _write([(Local(key, name, value), outs)],
                   lambda exact: self.native.broadcast(key, value, exact, priority))
        else:
            self.native.init(key, value)
        self.routes[key] = Local(key, name, value)

    def push(self, route: Local, arrays: List[Any], priority: int) -> None:
        if self._counts_rows and arrays[0].stype == 'row_sparse':
            route.traffic.add(steps=0, rows=len(sum_devices(arrays)[0]))
        self.native.push(route.key, arrays, priority)

    def pull(self, route: Local, outs: List[Any], priority: int, ignore_sparse: bool) -> None:
        _write([(route, outs)], lambda exact: self.native.pull(route.key, exact, priority, ignore_sparse))

    def pushpull(self, route: Local, arrays: List[Any], outs: List[Any], priority: int) -> None:
        _write([(route, outs)], lambda exact: self.native.pushpull(route.key, arrays, exact, priority))

    def pushpull_all(self, work: List[Tuple[Local, List[Any], List[Any]]], priority: int, pending: Any = None) -> None:
        """Push and pull several keys, in one call of MXNet's: keys may share arrays."""
        keys, values = [route.key for route, _, _ in work], [arrays for _, arrays, _ in work]
        _write([(route, outs) for route, _, outs in work],
               lambda *exact: self.native.pushpull(keys, values, list(exact), priority))

    def pull_rows(self, route: Local, id_arrays: List[np.ndarray], outs: List[Any], priority: int) -> None:
        _write([(route, outs)], lambda exact: self.native.row_sparse_pull(
            route.key, exact, priority, [mx.nd.from_numpy(ids) for ids in id_arrays]))

    def fresh_pulls(self) -> ContextManager[None]:
        """Surround nothing: there are no other workers."""
        return contextlib.nullcontext()

    def set_optimizer(self, optimizer: Any) -> None:
        self.native.set_optimizer(optimizer)

    def save_states(self, fname: str, dump_optimizer: bool) -> None:
        files.write_atomically(fname, self.updater.get_states(dump_optimizer))

    def load_states(self, fname: str) -> None:
        self.native.load_optimizer_states(fname)

    def attach(self, params: Dict[int, List[Any]], keeps_dense: bool, hints: Any) -> Dict[int, str]:
        return {key: param[0] for key, param in params.items()}

    def adopt(self, former: 'OneProcess', keys_set: Set[Any]) -> None:
        """Begin again: a Trainer initialises all keys from its parameters, so nothing is taken over.

        A store that the script passed as an instance is used again, with a new store of MXNet's.
        """
        if former is self:
            updater = self.updater
            self.native = mx.kv.create('device')
            self.routes.clear()
            if updater is not None:
                self.native.set_optimizer(updater.optimizer)

    def allreduce_numbers(self, values: np.ndarray) -> Callable[[], np.ndarray]:
        return lambda: values

    def any_of(self, flags: List[bool], waiting: str = '') -> List[bool]:
        return flags

    def note_call(self, call: str) -> None:
        """Do nothing: collective calls are not counted."""

    def call_count(self, call: str) -> int:
        return 0  # collective calls are not counted

    def barrier(self) -> None:
        """Do nothing: there are no other workers."""
