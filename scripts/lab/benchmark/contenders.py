"""The exchanges by MXNet.  Each is given the same gradients and drives its library as a user's training loop would.

A step ends when the worker has all that its next forward pass would read: the rows that it looked up, and the dense
sums.  Pushes of rows may still be on their way then, as they may in training; the next step's look-up waits for them.
"""
import os
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List

import mxnet as mx
import numpy as np

from .gradients import Checksum, checksum, dense_value, row_pattern
from .workloads import BATCHES, Dense, Table, Workload


def row_sparse(ids: np.ndarray, rows: np.ndarray, shape: tuple) -> Any:
    """A row_sparse array with rows `ids` (sorted, unique), rows of zeros kept."""
    return mx.nd.sparse.row_sparse_array((rows, ids), shape=shape, dtype=np.float32)


class Contender:
    """A worker's part in one way to exchange gradients."""

    def __init__(self, workload: Workload, rank: int, size: int):
        self.workload, self.rank, self.size = workload, rank, size
        #: The seconds that this worker has spent in each part of its steps, where the parts are told apart.
        self.phases: Dict[str, float] = {}
        self.drawn = [workload.draw(batch, rank) for batch in range(BATCHES)]
        self.unique = [{name: np.unique(ids) for name, ids in drawn.items()} for drawn in self.drawn]
        # The order of parameters in a model: tables that are looked up first, layers, tables that come last.
        self.parameters: List[Any] = list(workload.tables[:1]) + list(workload.dense) + list(workload.tables[1:])
        self._dense = [(mx.nd.full(parameter.shape, dense_value(rank, index)), mx.nd.empty(parameter.shape))
                       for index, parameter in enumerate(workload.dense)]

    def start(self) -> None:
        """Join the other workers and initialise all parameters."""

    def step(self, batch: int) -> None:
        """Exchange one batch's gradients."""

    def flush(self) -> None:
        """Wait until nothing that this worker sent is under way."""
        mx.nd.waitall()

    def barrier(self) -> None:
        """Wait for all workers."""

    def verify(self, batch: int) -> Dict[str, Dict[str, Checksum]]:
        """Make one more step; returns checksums by parameter of what the `step` summed.

        Contenders that keep weights also return those of the `past` steps, as they were before it.
        """
        raise NotImplementedError

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + time.monotonic() - started

    def _write_dense(self) -> List[Any]:
        """The dense gradients, written in each step as by a backward pass: some contenders overwrite them."""
        for values, gradient in self._dense:
            values.copyto(gradient)
        return [gradient for _, gradient in self._dense]

    def _gradient(self, table: Table, batch: int) -> np.ndarray:
        return row_pattern(self.rank, len(self.unique[batch][table.name]), table.width)


class _Store(Contender):
    """A KVStore, driven as gluon.Trainer drives it with weights that are row_sparse: updates on the store."""

    def _create(self) -> Any:
        raise NotImplementedError

    def start(self) -> None:
        self.store = self._create()
        self.store.set_optimizer(mx.optimizer.SGD(learning_rate=1, wd=0, lazy_update=True))
        self._weights: Dict[str, Any] = {}
        for key, parameter in enumerate(self.parameters):
            if isinstance(parameter, Table):
                self.store.init(key, self._initial(parameter))
                # A worker never holds a whole table: this one gets the rows of each look-up.
                self._weights[parameter.name] = mx.nd.sparse.zeros('row_sparse', parameter.shape)
            else:
                weight = mx.nd.zeros(parameter.shape)
                self.store.broadcast(key, weight, [weight])
                self._weights[parameter.name] = weight
        self._gradients = [
            {table.name: row_sparse(self.unique[batch][table.name], self._gradient(table, batch), table.shape)
             for table in self.workload.tables} for batch in range(BATCHES)]
        self._row_ids = [{name: mx.nd.array(ids, dtype=np.int64) for name, ids in drawn.items()}
                         for drawn in self.drawn]
        mx.nd.waitall()

    def _initial(self, table: Table) -> Any:
        return mx.nd.sparse.zeros('row_sparse', table.shape)

    def _pull(self, batch: int) -> None:
        for key, parameter in enumerate(self.parameters):
            if isinstance(parameter, Table):
                self.store.row_sparse_pull(key, out=[self._weights[parameter.name]],
                                           row_ids=self._row_ids[batch][parameter.name], priority=-key)
        for table in self.workload.tables:
            self._weights[table.name].wait_to_read()

    def step(self, batch: int) -> None:
        with self._phase('pull'):
            self._pull(batch)
        with self._phase('push'):
            self._push(batch)
        with self._phase('dense'):
            for parameter in self.workload.dense:
                self._weights[parameter.name].wait_to_read()

    def _push(self, batch: int) -> None:
        """Hand over all gradients, in the order of the parameters."""
        dense = iter(self._write_dense())
        for key, parameter in enumerate(self.parameters):
            if isinstance(parameter, Table):
                self._push_rows(key, parameter, batch)
            else:
                weight = self._weights[parameter.name]
                self.store.pushpull(key, [next(dense)], out=[weight], priority=-key)

    def _push_rows(self, key: int, table: Table, batch: int) -> None:
        self.store.push(key, [self._gradients[batch][table.name]], priority=-key)

    def barrier(self) -> None:
        self.store._barrier()

    def verify(self, batch: int) -> Dict[str, Dict[str, Checksum]]:
        self._pull(batch)
        before = self._read(batch)
        self.step(batch)
        self.flush()
        self._pull(batch)
        after = self._read(batch)
        # The optimizer subtracted the sums from weights that began as zeros.
        return {'past': {name: checksum(-value) for name, value in before.items()},
                'step': {name: checksum(before[name] - after[name]) for name in before}}

    def _read(self, batch: int) -> Dict[str, np.ndarray]:
        values = {}
        for parameter in self.parameters:
            weight = self._weights[parameter.name]
            if isinstance(parameter, Dense):
                values[parameter.name] = weight.asnumpy()
                continue
            ids = weight.indices.asnumpy()
            if not np.array_equal(ids, self.unique[batch][parameter.name]):
                raise RuntimeError('%s: asked for %d rows, got %d others'
                                   % (parameter.name, len(self.unique[batch][parameter.name]), len(ids)))
            values[parameter.name] = weight.data.asnumpy()
        return values


class Hybrid(_Store):
    """The store of mxhybrid."""

    settings: Dict[str, str] = {}

    def _create(self) -> Any:
        import mxhybrid

        # Timed probes, to choose routes, would fall into the steps that are measured.
        return mxhybrid.create(routes=os.environ.get('MXHYBRID_ROUTES', 'servers'), **self.settings)

    def _push(self, batch: int) -> None:
        # The order of gluon.Trainer with mxhybrid: dense gradients first, which backward computes before the gradients
        # of embeddings.
        dense = self._write_dense()
        numbered = list(enumerate(self.parameters))
        keys = [key for key, parameter in numbered if isinstance(parameter, Dense)]
        if keys:
            self.store.pushpull(keys, [[gradient] for gradient in dense],
                                [[self._weights[parameter.name]] for parameter in self.workload.dense], -keys[0])
        for key, parameter in numbered:
            if isinstance(parameter, Table):
                self._push_rows(key, parameter, batch)


class HybridPrefetch(Hybrid):
    """The store of mxhybrid, which requests the rows of the next batch early, as `mxhybrid.prefetching` does."""

    def _pull(self, batch: int) -> None:
        following = self._row_ids[(batch + 1) % BATCHES]
        for key, parameter in enumerate(self.parameters):
            if isinstance(parameter, Table):
                self.store.prefetch(key, following[parameter.name], -key, after_push=True)
        super()._pull(batch)


class HybridStale(HybridPrefetch):
    """The same with staleness 1: rows may lack the last push of other workers, and travel during other work."""

    settings = {'staleness': '1'}

    def verify(self, batch: int) -> Dict[str, Dict[str, Checksum]]:
        with self.store.backend.fresh_pulls():
            return super().verify(batch)


class HybridEngines(Hybrid):
    """The store of mxhybrid over the existing engines alone, ps-lite and Horovod."""

    settings = {'row_transport': 'ps-lite', 'dense_transport': 'horovod'}


class HybridFloat16(Hybrid):
    """The store of mxhybrid, whose values travel as float16."""

    settings = {'wire_dtype': 'float16'}


class HybridInt8(Hybrid):
    """The store of mxhybrid, whose values travel as int8."""

    settings = {'wire_dtype': 'int8'}


class DistSync(_Store):
    """MXNet's own parameter servers, for tables and dense parameters alike."""

    def _create(self) -> Any:
        return mx.kv.create('dist_sync')

    def _initial(self, table: Table) -> Any:
        if self.store.rank != 0:
            return super()._initial(table)
        # Native rank 0 sends the table to the servers, which take rows left out for a smaller table.
        return row_sparse(np.arange(table.rows), np.zeros(table.shape, np.float32), table.shape)


class _Horovod(Contender):
    """Dense gradients summed in place by allreduce; tables as the subclasses do."""

    def start(self) -> None:
        import horovod.mxnet as hvd

        self.hvd = hvd
        hvd.init()
        if (hvd.rank(), hvd.size()) != (self.rank, self.size):
            raise RuntimeError('Horovod says rank %d of %d, not %d of %d'
                               % (hvd.rank(), hvd.size(), self.rank, self.size))
        self._sums: List[Any] = []
        self._tag = mx.nd.zeros(1)

    def _allreduce_dense(self) -> None:
        self._sums = self._write_dense()
        for number, total in enumerate(self._sums):
            self.hvd.allreduce_(total, op=self.hvd.Sum, name=self.workload.dense[number].name, priority=-number)

    def barrier(self) -> None:
        self.hvd.allreduce_(self._tag, op=self.hvd.Sum, name='barrier')
        self._tag.wait_to_read()

    def _verified(self, tables: Dict[str, np.ndarray]) -> Dict[str, Dict[str, Checksum]]:
        checksums = {name: checksum(rows) for name, rows in tables.items()}
        checksums.update({parameter.name: checksum(total.asnumpy())
                          for parameter, total in zip(self.workload.dense, self._sums)})
        return {'step': checksums}


class HorovodDense(_Horovod):
    """Gradients of tables as dense arrays, which allreduce sums like all other gradients."""

    def start(self) -> None:
        super().start()
        self._tables = {table.name: mx.nd.zeros(table.shape) for table in self.workload.tables}

    def step(self, batch: int) -> None:
        from mxhybrid.native.arrays import host_view

        self._allreduce_dense()
        for number, table in enumerate(self.workload.tables):
            total = self._tables[table.name]
            view = host_view(total)
            view[:] = 0
            view[self.unique[batch][table.name]] = self._gradient(table, batch)
            self.hvd.allreduce_(total, op=self.hvd.Sum, name=table.name, priority=-len(self._sums) - number)
        mx.nd.waitall()

    def verify(self, batch: int) -> Dict[str, Dict[str, Checksum]]:
        from mxhybrid.native.arrays import host_view

        self.step(batch)
        return self._verified({name: host_view(total)[self.unique[batch][name]]
                               for name, total in self._tables.items()})


class HorovodGather(_Horovod):
    """Every worker gets the rows of all workers by allgather.

    They are not added up here: the figures do not contain that cost, in this contender's favour.
    """

    def start(self) -> None:
        super().start()
        # Ids travel as 32 bits each: they fit, and row_sparse arrays keep 64.
        self._parts = [{table.name: (mx.nd.array(self.unique[batch][table.name], dtype=np.int32),
                                     mx.nd.array(self._gradient(table, batch)))
                        for table in self.workload.tables} for batch in range(BATCHES)]
        self._gathered: Dict[str, Any] = {}

    def step(self, batch: int) -> None:
        self._allreduce_dense()
        self._gathered = {}
        for name, (ids, rows) in self._parts[batch].items():
            self._gathered[name] = (self.hvd.allgather(ids, name=name + '.ids'),
                                    self.hvd.allgather(rows, name=name + '.rows'))
        mx.nd.waitall()

    def verify(self, batch: int) -> Dict[str, Dict[str, Checksum]]:
        self.step(batch)
        tables = {}
        for name, (ids, rows) in self._gathered.items():
            own_ids = self.unique[batch][name]
            gathered_ids = ids.asnumpy().astype(np.int64)
            positions = np.minimum(np.searchsorted(own_ids, gathered_ids), len(own_ids) - 1)
            is_own = own_ids[positions] == gathered_ids
            tables[name] = np.zeros((len(own_ids), rows.shape[1]), np.float32)
            np.add.at(tables[name], positions[is_own], rows.asnumpy()[is_own])
        return self._verified(tables)


#: Class by the name that --contenders takes.
CLASSES = {'hybrid': Hybrid, 'hybrid_prefetch': HybridPrefetch, 'hybrid_stale': HybridStale,
           'hybrid_engines': HybridEngines, 'hybrid_float16': HybridFloat16, 'hybrid_int8': HybridInt8,
           'dist_sync': DistSync, 'horovod_gather': HorovodGather, 'horovod_dense': HorovodDense}
