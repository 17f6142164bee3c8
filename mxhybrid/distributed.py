"""A job of several processes: every key of a store takes its route through Horovod or the servers."""
import contextlib
import hashlib
import itertools
from typing import Any, Dict, Iterator, List, Optional, Set

import mxnet as mx
import numpy as np

from . import states
from .arrays import host_view
from .chooser import Chooser
from .errors import InputError
from .job import Job
from .log import get_logger
from .moving import repartition
from .optimizers import check_for_table
from .ps import Table
from .routes import Dense, Route, Sparse
from .serving import OwnRows
from .settings import Settings, variable
from .tuner import Tuner
from .wire import safe_magnitude

logger = get_logger(__name__)


class Distributed:
    """Backend of a store in a job of several processes; every method serves one key and is collective but for pulls.

    Parameters
    ----------
    job : Job
    settings : Settings

    Attributes
    ----------
    routes : dict
        Route by key.
    updater : mxnet.optimizer.Updater or None
        Updates dense values of the store, in this process.
    """

    def __init__(self, job: Job, settings: Settings):
        assert job.collective is not None and job.servers is not None and job.lifeline is not None
        self._job, self._settings = job, settings
        self._collective, self._servers, self._lifeline = job.collective, job.servers, job.lifeline
        self._prefix = 'hybrid%d' % job.next_store_id()
        self._chooser = Chooser(job, settings, self._prefix)
        self.routes: Dict[Any, Route] = {}
        self.updater: Any = None
        self._optimizer: Any = None
        self._keeps_dense = True
        self._agreed: Dict[Any, tuple] = {}
        # Keys to be initialised anew, and whether their values were set.
        self._reinitialise: Dict[Any, bool] = {}
        self._flags: Any = None
        #: Keys whose way may still change between servers' sums and own rows.
        self.unsettled: Set[Any] = set()
        self._tuner: Optional[Tuner] = None
        if settings.any_auto:
            self._tuner = Tuner(settings, job.collective, job.num_servers, self.routes, self._prefix)

    @property
    def native(self) -> Any:
        """The native store, shared by all stores of the job."""
        return self._servers.native

    # -- initial values ----------------------------------------------------------------------------------------

    def may_init(self, key: Any) -> bool:
        """Whether a key is new, or to be initialised anew."""
        return key not in self.routes or key in self._reinitialise

    def init(self, call: str, key: Any, name: str, value: Any, outs: List[Any], priority: int) -> None:
        """Set a key's initial value to worker 0's and write it to `outs`."""
        if value.stype == 'row_sparse':
            self._refuse_tables(call, name, value.dtype, np.float16, np.float64)
        if value.stype == 'row_sparse' and self._optimizer is not None:
            check_for_table(self._optimizer, name, value.dtype, self._optimizer._get_wd(key))
        self._lifeline.count_call('init of %s' % name)
        if self._agreed.get(key) != tuple(value.shape):
            self._agree(call, [[key, name, str(np.dtype(value.dtype)), value.stype, list(value.shape)]])
        known = self.routes.get(key)
        value_was_set = self._reinitialise.pop(key, True)
        if value.stype == 'row_sparse':
            if isinstance(known, Sparse):
                known.restart(value if value_was_set else None)
            else:
                replicated = self._chooser.starts_replicated(key, name, value, self._optimizer)
                wanted = 0 if replicated else self._partitions_for(name, value)
                self.routes[key] = known = Sparse(key, name, value, self._servers, self._collective, self._prefix,
                                                  wanted, replicated, self._settings.wire_dtype)
            if outs:
                known.pull_all(outs, priority)
            return
        if not isinstance(known, Dense):
            self.routes[key] = known = Dense(key, name, value, self._prefix, self._collective,
                                             self._settings.wire_dtype)
        known.broadcast(value, outs, self._keeps_dense or not outs, priority)

    def _refuse_tables(self, call: str, name: str, dtype: Any, *refused: Any) -> None:
        if self._settings.halves and np.dtype(dtype) in refused:
            raise InputError('%s: %s is %s, but with %s=float16 servers compute in float32 only: make it float32, '
                             'or leave %s out' % (call, name, np.dtype(dtype), variable('wire_dtype'),
                                                  variable('wire_dtype')))

    def _agree(self, call: str, keys: List[List[Any]]) -> None:
        """Have all workers compare what they are about to initialise, ``[[key, name, …], …]``."""
        keys = [key + ['route ' + self._settings.route_for(key[1]), 'own_rows=%d' % self._settings.own_rows]
                for key in keys]
        digest = np.frombuffer(hashlib.blake2b(repr(keys).encode(), digest_size=8).digest(), np.int32)
        tag = '%s.agree' % self._prefix
        if all(np.array_equal(digest, other) for other in self._collective.gather(digest, tag)):
            return
        everyone = self._collective.exchange(keys, tag + '.details')
        for rank, theirs in enumerate(everyone):
            for first, other in itertools.zip_longest(everyone[0], theirs):
                if first != other:
                    raise InputError('%s: workers disagree: worker 0 has %s, worker %d has %s. Build the same model, '
                                     'in the same order and with the same names, on every worker'
                                     % (call, _describe(first), rank, _describe(other)))

    def _partitions_for(self, name: str, like: Any) -> int:
        rows = like.shape[0]
        wanted = self._settings.partitions_for(name)
        if wanted is None and self._tuner is not None:
            wanted = self._tuner.start(name, like.shape, like.dtype)
        if wanted is None:
            return min(self._job.num_servers, rows)
        if wanted > rows and self._job.rank == 0:
            logger.warning('partitions=%d is more than the %d rows of %s: using %d', wanted, rows, name, rows)
        return wanted

    # -- gradients and weights -----------------------------------------------------------------------------------

    def push(self, route: Any, arrays: List[Any], priority: int) -> None:
        """Sum arrays over devices and workers into a key, by the optimizer if one is set."""
        if isinstance(route, Dense) and route.own is not None:
            self.push_own(route, arrays, self._optimizer, priority)
            return
        if arrays[0].stype == 'row_sparse':
            ids, rows = route.merge(arrays, self._servers.trace)  # before anything is sent, since it may refuse them
            self._before_push(route)
            self._chooser.before_push(route, self._optimizer)
            push = self._push_sparse if isinstance(route, Sparse) else self._push_rows
            push(route, ids, rows, priority)
            return
        self._before_push(route)
        if self.updater is not None:
            self._push_dense(route, arrays, priority)
        else:
            route.stored = mx.nd.empty(route.shape, ctx=arrays[0].context, dtype=route.dtype)
            route.sum_into(route.stored, arrays, priority)

    def _before_push(self, route: Any) -> None:
        self._lifeline.count_call('push of %s' % route.name)
        # Routes are chosen first: tables that leave the servers have no partitions.
        if self._tuner is None or not self._tuner.active:
            return
        if self._chooser.busy or self.unsettled:
            self._tuner.pause()
        else:
            self._tuner.before_push(route.key)

    def push_own(self, route: Dense, arrays: List[Any], optimizer: Any, priority: int,
                 devices: Optional[List[int]] = None) -> None:
        """Have the servers update a dense weight that they hold, see :meth:`mxhybrid.serving.OwnRows.push`."""
        ids, rows = route.merge(arrays, self._servers.trace)
        self._before_push(route)
        route.own.push(ids, rows, optimizer, priority, devices)

    def _push_sparse(self, route: Any, ids: np.ndarray, rows: np.ndarray, priority: int) -> None:
        optimizer = self._optimizer
        if optimizer is not None:
            count = optimizer._index_update_count.get(route.key, optimizer.begin_num_update)
            optimizer._update_count(route.key)
            route.table.set_optimizer(optimizer, optimizer._get_lr(route.key), optimizer._get_wd(route.key), count)
        route.push(ids, rows, priority)
        self._chooser.after_push(route, ids)

    def _push_rows(self, route: Any, ids: np.ndarray, rows: np.ndarray, priority: int) -> None:
        self._refuse_tables('push', route.name, route.dtype, np.float64)
        wanted = 0 if route.sums_rows else self._partitions_for(route.name, route)
        route.push_rows(ids, rows, self._servers, wanted, priority)
        self._chooser.after_push(route, ids)
        if self.updater is not None:
            self.updater(route.key, route.summed_rows(priority=priority), _stored(route))

    def _push_dense(self, route: Dense, arrays: List[Any], priority: int) -> None:
        merged = route.scratch(arrays[0])
        route.sum_into(merged, arrays, priority)
        self.updater(route.key, merged, _stored(route))

    def pull(self, route: Any, outs: List[Any], priority: int, ignore_sparse: bool) -> None:
        """Write a key's value to `outs`; for a dense key a row_sparse output takes the summed gradient."""
        if isinstance(route, Sparse):
            if not ignore_sparse:
                route.pull_all(outs, priority)
            return
        gradients = [array for array in outs if array.stype == 'row_sparse']
        if gradients and not route.sums_rows:
            raise InputError('pull: %s is dense and no row_sparse value was pushed to it: give it a dense output'
                             % route.name)
        if gradients:
            route.summed_rows(gradients, priority)
        for array in outs:
            if array.stype != 'row_sparse':
                _stored(route).copyto(array)

    def serve(self, route: Dense, weight: Any, state: Any, optimizer: Any) -> None:
        """Have the servers hold and update a dense weight, see :meth:`mxhybrid.serving.OwnRows.take`."""
        self._lifeline.count_call('move of %s' % route.name)
        OwnRows(route).take(weight, state, optimizer)
        route.stored = None

    def votes(self, flags: List[bool]) -> List[bool]:
        """Which flags are true on any worker."""
        return self._collective.any_of(flags, self._prefix + '.votes')

    def exchange(self, value: Any, what: str) -> List[Any]:
        """The JSON `value` of every worker, in rank order."""
        return self._collective.exchange(value, '%s.%s' % (self._prefix, what))

    @property
    def own_rows(self) -> bool:
        """Whether servers may hold dense weights."""
        return self._settings.own_rows

    def pushpull(self, route: Any, arrays: List[Any], outs: List[Any], priority: int) -> None:
        """Push dense arrays and write the key's value to `outs`."""
        self._before_push(route)
        if self.updater is not None:
            self._push_dense(route, arrays, priority)
        else:
            # As in MXNet's local store, what was pushed last is the value; no copy is made of it.
            route.stored = outs[0]
            route.sum_into(route.stored, arrays, priority)
        for array in outs:
            if array is not route.stored:
                route.stored.copyto(array)

    def pull_rows(self, route: Any, wanted: List[np.ndarray], outs: List[Any], priority: int) -> None:
        """Write rows to `outs`: those of one array of ids to all outputs, or of one array to each."""
        self._chooser.pulled(route, sum(map(len, wanted)))
        if len(wanted) == 1:
            route.pull(wanted[0], outs, priority)
        else:
            route.pull_each(wanted, outs, priority)

    def prefetch(self, route: Any, ids: np.ndarray, priority: int, after_push: bool) -> None:
        """Ask for rows that will be pulled."""
        if isinstance(route, Sparse):
            route.table.prefetch(ids, priority, after_push)
        elif isinstance(route, Dense) and route.own is not None:
            route.own.table.prefetch(ids, priority, after_push)

    def repartition(self, route: Any, partitions: int) -> None:
        """Cut a table into another number of partitions, between two steps."""
        self._lifeline.count_call('repartition of %s' % route.name)
        if not isinstance(route.table, Table):
            raise InputError('repartition: %s has no table on the servers: %s' % (
                route.name, 'no row_sparse value was pushed to it' if route.table is None else 'it went to allreduce'))
        if route.wire != route.dtype:
            raise InputError('repartition: %s has rows that travel as %s, and keeps the partitions that it has: leave '
                             '%s out, or start with another count' % (route.name, route.wire, variable('wire_dtype')))
        repartition(route.table, partitions)

    # -- optimizer -------------------------------------------------------------------------------------------------

    def set_optimizer(self, optimizer: Any) -> None:
        """Update on the store from now on; a second optimizer starts without state, as in MXNet's own stores."""
        for route in self._sparse_routes():
            check_for_table(optimizer, route.name, route.dtype, optimizer._get_wd(route.key))
        if self._optimizer is not None:
            held: List[Any] = [*self._sparse_routes(), *self.own_routes()]
            for route in held:
                route.table.forget_optimizer()
        self._optimizer = optimizer
        self.updater = mx.optimizer.get_updater(optimizer)

    def save_states(self, fname: str, dump_optimizer: bool) -> None:
        """Write all optimizer state to one file on worker 0 (not collective)."""
        if self._job.rank == 0:
            states.save(fname, self.updater, self._sparse_routes() + self.own_routes(), dump_optimizer)

    def load_states(self, fname: str) -> None:
        """Read optimizer state on worker 0 and give it to all workers and servers."""
        self._lifeline.count_call('load_states')
        states.load(fname, self.updater, self._sparse_routes(), self._collective, self._prefix)
        self._optimizer = self.updater.optimizer

    def _sparse_routes(self) -> List[Sparse]:
        return [route for route in self.routes.values() if isinstance(route, Sparse)]

    def own_routes(self) -> List[Dense]:
        """Routes of dense weights that servers hold."""
        return [route for route in self.routes.values() if isinstance(route, Dense) and route.own is not None]

    # -- for Trainers ----------------------------------------------------------------------------------------------

    def attach(self, params: Dict[int, List[Any]], keeps_dense: bool) -> None:
        """Agree on a Trainer's parameters; see :meth:`mxhybrid.store.Hybrid.attach`."""
        self._keeps_dense = keeps_dense
        self._agree('Trainer', [[key] + param for key, param in params.items()])
        self._agreed = {key: tuple(param[-1]) for key, param in params.items() if all(param[-1])}

    def adopt(self, other: 'Distributed', keys_set: Set[Any]) -> None:
        """Take over keys and tables; see :meth:`mxhybrid.store.Hybrid.adopt`."""
        self._prefix, self.routes = other._prefix, other.routes
        self._chooser, self._tuner = other._chooser, other._tuner
        self._reinitialise = {key: key in keys_set for key in self.routes}

    @property
    def largest_gradient(self) -> float:
        """Up to which magnitude a float32 gradient surely survives the way through all workers."""
        return safe_magnitude(self._job.num_workers) if self._settings.halves else float('inf')

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true on any worker."""
        return self._collective.any(flag, self._prefix + '.any')

    def sum_flags(self, flags: List[bool]) -> Any:
        """How many workers have each flag set, as an array that is filled later."""
        if self._flags is None or len(self._flags) != len(flags):
            self._flags = mx.nd.zeros(len(flags))
        # One array for all calls: Horovod refuses a name that is still in flight, the engine makes it wait.
        self._flags[:] = np.array(flags, np.float32)
        self._collective.allreduce_(self._flags, self._prefix + '.flags')
        return self._flags

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Around what may take this worker long while the others wait: it does not count as a stall."""
        self._lifeline.busy = True
        try:
            yield
        finally:
            self._lifeline.busy = False

    def read_for_all(self, fname: str) -> bytes:
        """Contents of a file on worker 0, given to all workers."""
        self._lifeline.count_call('a file for all')
        data = states.read_on_root(fname, self._collective, self._prefix + '.file')
        return states.broadcast_bytes(data, self._collective, self._prefix + '.file')

    def spread(self, array: Any, what: str) -> None:
        """Overwrite a dense array with worker 0's (blocks)."""
        self._lifeline.count_call(what)
        self._collective.broadcast_(array, '%s.%s' % (self._prefix, what))
        array.wait_to_read()

    def barrier(self) -> None:
        """Wait for all workers."""
        self._collective.any(False, self._prefix + '.barrier')


def _stored(route: Dense) -> Any:
    if route.own is not None:
        whole = mx.nd.empty(route.shape, dtype=route.dtype)
        for ids in route.own.chunks():
            host_view(whole)[ids] = host_view(route.own.pull(ids))
        return whole
    if route.stored is None:
        raise InputError('%s: the store holds no value of it: set the optimizer before init or broadcast' % route.name)
    return route.stored


def _describe(param: Optional[List[Any]]) -> str:
    return 'no such parameter' if param is None else 'key %r: %s' % (param[0], ' '.join(map(str, param[1:])))
