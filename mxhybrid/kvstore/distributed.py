"""The backend for a job of several processes: chooses routes, compares the calls of workers, keeps the optimizer."""
import hashlib
import itertools
from typing import Any, Callable, ContextManager, Dict, Iterable, List, Mapping, Optional, Set, Tuple

import mxnet as mx
import numpy as np

from ..base.errors import InputError, SettingError
from ..base.log import get_logger
from ..base.settings import Settings, TablePlan, variable
from ..base.storage_probe import refuse_problems
from ..comm.float16 import safe_magnitude
from ..job.job import Job
from ..native.optimizer_state import rates_of
from ..native.optimizers import check_for_table, is_known, reference_of
from ..routes.chooser import Chooser
from ..routes.dense_buckets import DenseBuckets, PendingSums
from ..routes.partition_tuner import Tuner
from ..routes.route import RouteContext
from ..routes.rows import read_gradient
from ..routes.sharded_buckets import ShardedBucket, sharded_buckets
from ..row_store.row_store import RowStoreOptions
from ..servers.dynamic_table import DynamicTable, DynamicTableSpec, create_dynamic_table
from ..servers.lifecycle import retire_tables
from ..servers.row_wise_check import check_row_wise
from . import states_file
from .counted_names import without_counters

logger = get_logger(__name__)


class Distributed:
    """The backend of a store in a job of several processes; its methods are collective, except pulls.

    The route of a key (:mod:`mxhybrid.routes.route`) handles its gradients and values.
    """

    def __init__(self, job: Job, settings: Settings):
        assert job.collective is not None and job.servers is not None and job.guard.lifeline is not None
        assert job.leases is not None
        self._job, self._settings = job, settings
        self._collective, self._servers, self._lifeline = job.collective, job.servers, job.guard.lifeline
        if settings.any_stale and not job.servers.on_lane:
            raise SettingError("%s: pulls with staleness need the lane, but in this job %s: leave %s out, or see the "
                               "log of worker 0 for the reason" % (variable('staleness'), job.transports,
                                                                   variable('staleness')))
        self._leases = job.leases
        self._lease = job.leases.new()
        self._prefix = self._lease.prefix
        #: Routes by key.
        self.routes: Dict[Any, Any] = {}
        #: Updates dense values of the store, in this process; tables have the same optimizer.
        self.updater: Any = None
        self._tuner: Optional[Tuner] = None
        if settings.any_auto:
            self._tuner = Tuner(settings, job.collective, job.num_servers, self.routes, self._prefix)
        self._context = RouteContext(job.collective, job.servers, settings, self._prefix, self._tuner)
        groups = job.topology.groups(job.servers.on_lane)
        self._chooser = Chooser(self._context, job.topology.hosts, groups, job.measured)
        self._buckets = DenseBuckets(job.collective, self._prefix)
        # Number of calls of sharded_buckets.
        self._sharded = 0
        self._settings_checked: List[Any] = []
        self._keeps_dense = True
        self._agreed: Dict[Any, tuple] = {}
        # Keys that are to be initialised again, and whether their values were set.
        self._reinitialise: Dict[Any, bool] = {}
        #: Keys whose weights may yet move to servers; until it is decided, all tables keep their partitions.
        self.unsettled: Set[Any] = set()
        #: Whether servers may hold dense weights.
        self.serves_dense_weights = settings.on_demand_rows
        #: Whether workers update shards of dense weights.
        self.shards_updates = settings.shard_updates
        #: Largest magnitude of a float32 gradient that cannot overflow in the sum over all workers.
        self.largest_gradient = safe_magnitude(job.num_workers) if settings.may_travel_as('float16') else float('inf')

    @property
    def native(self) -> Any:
        """The native store, shared by all stores of the job."""
        return self._servers.native

    @property
    def _optimizer(self) -> Any:
        return None if self.updater is None else self.updater.optimizer

    # -- initial values ----------------------------------------------------------------------------------------

    def may_init(self, key: Any) -> bool:
        """Return whether a key is new, or to be initialised again."""
        return key not in self.routes or key in self._reinitialise

    def init(self, call: str, key: Any, name: str, value: Any, outs: List[Any], priority: int) -> None:
        """Set a key's initial value to worker 0's and write it to `outs`."""
        sparse, optimizer = value.stype == 'row_sparse', self._optimizer
        if sparse:
            self._check_dtype(call, name, value.dtype)
        if sparse and optimizer is not None:
            self._admit(optimizer, key, name, value.shape, value.dtype)
        self._lifeline.count_call('init of %s' % name)
        if self._agreed.get(key) != tuple(value.shape):
            self._agree(call, [[key, name, str(np.dtype(value.dtype)), value.stype, list(value.shape)]])
        route, was_set = self.routes.get(key), self._reinitialise.pop(key, True)
        if route is None or route.sparse != sparse:
            route = self._chooser.start(key, name, value, optimizer)
            if optimizer is not None and route.uses_servers:
                self._introduce(optimizer)
        route.init(value, outs, priority, self._keeps_dense, was_set)
        self.routes[key] = route

    def _admit(self, optimizer: Any, key: Any, name: str, shape: tuple, dtype: Any) -> None:
        """Refuse an optimizer that cannot update a table exactly."""
        check_for_table(optimizer, name, dtype, rates_of(optimizer, key)[1])
        if not is_known(optimizer):
            check_row_wise(optimizer, name, shape, dtype)

    def _introduce(self, optimizer: Any) -> None:
        """Let servers import a class that is not MXNet's: a server that cannot import it ends the job before training.
        """
        if not is_known(optimizer):
            self._servers.command('find', name=reference_of(optimizer))

    def _check_dtype(self, call: str, name: str, dtype: Any) -> None:
        if np.dtype(dtype) != np.float32 and self._settings.wire_dtype_for(name) == 'int8':
            raise InputError('%s: %s is %s, but %s lets it travel as int8, which rounds rows of float32 only: make it '
                             'float32, or choose float32 for its name'
                             % (call, name, np.dtype(dtype), variable('wire_dtype')))
        if self._settings.may_travel_as('float16') and np.dtype(dtype) != np.float32:
            raise InputError('%s: %s is %s, but with %s=float16 servers compute in float32 only: make it float32, '
                             'or leave %s out' % (call, name, np.dtype(dtype), variable('wire_dtype'),
                                                  variable('wire_dtype')))

    def _agree(self, call: str, keys: List[List[Any]]) -> List[str]:
        """Compare the keys that workers are about to initialise, ``[[key, name, …], …]``; return worker 0's names.

        Names may differ in the numbers that gluon counts up.  InputError on all workers if anything else differs.
        """
        names = [key[1] for key in keys]
        settings = self._context.settings
        keys = [key + ['route ' + settings.route_for(key[1]), 'travels as ' + settings.wire_dtype_for(key[1]),
                       'on_demand_rows=%d' % settings.on_demand_rows] for key in keys]
        compared = [[key[0], name] + key[2:] for key, name in zip(keys, without_counters(names))]
        digest = np.concatenate([_digest(compared), _digest(names)])
        tag = '%s.agree' % self._prefix
        digests = self._collective.allgather(digest, tag)
        if all(np.array_equal(digest, other) for other in digests):
            return names
        if all(np.array_equal(digests[0][:2], other[:2]) for other in digests):
            return [str(name) for name in self._collective.allgather_json(names, tag + '.names')[0]]
        everyone = self._collective.allgather_json(keys, tag + '.details')
        for rank, worker_keys in enumerate(everyone):
            for first, other in itertools.zip_longest(everyone[0], worker_keys):
                if first != other:
                    raise InputError('%s: workers disagree: worker 0 has %s, worker %d has %s. Build the same model, '
                                     'in the same order and with the same names, on every worker'
                                     % (call, _declaration(first), rank, _declaration(other)))
        return names

    # -- gradients and weights -----------------------------------------------------------------------------------

    def push(self, route: Any, arrays: List[Any], priority: int) -> None:
        """Sum arrays over devices and workers into a key, by the optimizer if one is set."""
        if arrays[0].stype != 'row_sparse':
            self.before_push(route)
            route.push(arrays, self.updater, priority)
            return
        # Before anything is sent: it may refuse the arrays.
        ids, rows = read_gradient(route, arrays, self._servers.trace)
        self.before_push(route)
        route = self._chooser.before_push(route, self._optimizer)
        self.routes[route.key] = route
        route.push_rows(ids, rows, self.updater, priority)
        self._chooser.after_push(route, ids)

    def push_on_demand(self, route: Any, arrays: List[Any], optimizer: Any, priority: int, devices: Iterable[int]
                       ) -> None:
        """Let servers update a dense weight, see :meth:`mxhybrid.routes.on_demand_rows.OnDemandRows.update`."""
        ids, rows = read_gradient(route, arrays, self._servers.trace)
        self.before_push(route)
        route.update(ids, rows, optimizer, priority, devices)

    def before_push(self, route: Any) -> None:
        """Count a call that sums gradients, first that of `route`; before anything is sent, refuse wrong settings."""
        if self.updater is not None:
            self._check_settings(self.updater.optimizer)
        self._lifeline.count_call('push of %s' % route.name)
        # Routes are chosen before partition counts: a table that leaves the servers has no partitions.
        if self._tuner is None or not self._tuner.active:
            return
        if self._chooser.waits(route.key) or self.unsettled:
            self._tuner.pause()
        else:
            self._tuner.before_push(route.key)

    def _check_settings(self, optimizer: Any) -> None:
        """Refuse settings that a table cannot have, before the first push of a step, so that nothing is updated."""
        settings = [getattr(optimizer, name, None) for name in ('wd', 'momentum', 'centered', 'multi_precision')]
        if settings != self._settings_checked:
            for route in self._tables():
                route.check_optimizer(optimizer)
            self._settings_checked = settings

    def pushpull(self, route: Any, arrays: List[Any], outs: List[Any], priority: int) -> None:
        """Push dense arrays and write the key's value to `outs`."""
        self.before_push(route)
        route.pushpull(arrays, outs, self.updater, priority)

    def pushpull_all(self, work: List[Tuple[Any, List[Any], List[Any]]], priority: int,
                     pending: Optional[List[PendingSums]] = None) -> None:
        """Push dense arrays of several keys, and write the values to outputs; for `pending` see
        :meth:`mxhybrid.routes.dense_buckets.DenseBuckets.pushpull`.
        """
        self.before_push(work[0][0])
        rest = self._buckets.pushpull(work, self.updater, priority, pending)
        for index, (route, arrays, outs) in enumerate(rest):
            route.pushpull(arrays, outs, self.updater, priority - index)

    def pull(self, route: Any, outs: List[Any], priority: int, ignore_sparse: bool) -> None:
        """Write a key's value to `outs`; for a dense key a row_sparse output takes the summed gradient."""
        route.pull(outs, self.updater, priority, ignore_sparse)

    def pull_rows(self, route: Any, id_arrays: List[np.ndarray], outs: List[Any], priority: int) -> None:
        """Write rows to `outs`: `id_arrays` has one array of ids for all outputs, or one for each."""
        self._chooser.pulled(route, sum(map(len, id_arrays)))
        route.pull_rows(id_arrays, outs, priority)

    def fresh_pulls(self) -> ContextManager[None]:
        """Surround pulls that get rows without staleness."""
        return self._servers.fresh_pulls()

    # -- rows on demand---------------------------------------------------------------------------------------------

    def on_demand_routes(self) -> List[Any]:
        """Return the routes of dense weights that servers hold."""
        return [route for route in self.routes.values() if route.weight_in_table and not route.sparse]

    def serve(self, key: Any, weight: Any, state: Any, optimizer: Any) -> None:
        """Move a dense weight to the servers, see :meth:`mxhybrid.routes.on_demand_rows.OnDemandRows.fill`."""
        route = self.routes[key]
        self._lifeline.count_call('move of %s' % route.name)
        self.routes[key] = route.to_on_demand_rows(weight, state, optimizer)

    def take_back(self, key: Any, weight: Any) -> Tuple[Any, List[np.ndarray]]:
        """End :meth:`serve`; return the optimizer that makes the state, None if there is no state, and the state's
        arrays.

        `weight`, unless it is None, is the present value, which the store keeps.
        """
        route = self.routes[key]
        # There is no state if the store has just been given another optimizer.
        maker, states = (route.state_maker() if route.has_state else None), route.take_state()
        worker_route = route.give_up()
        if weight is not None:
            worker_route.keep(weight)
        self.routes[key] = worker_route
        return maker, states

    # -- dynamic tables ----------------------------------------------------------------------------------------------

    def open_dynamic_table(self, table: Any) -> DynamicTable:
        """Create a Trainer's dynamic `table` without rows, in place of the one that was served before (collective)."""
        name, param = table.name_of_all, table.param
        self.note_call('creation of %s' % name)
        directory, resident_bytes = self._storage_for(name)
        if table.served is not None:
            retire_tables(self._servers, [table.served.name])
        partitions = self._settings.partitions_for(name) or self._servers.num_servers
        return create_dynamic_table(self._servers, DynamicTableSpec(
            self._context.tag(table.key, name), param.width, param.dtype, param.first_values, partitions,
            RowStoreOptions(**param.options, directory=directory, resident_bytes=resident_bytes),
            self._settings.wire_dtype_for(name), self._settings.max_batch_rows, self._settings.staleness_for(name)))

    def _storage_for(self, name: str) -> Tuple[str, int]:
        """Return the directory of a dynamic table and its resident bytes (collective).

        SettingError on all workers if a server cannot keep rows there.
        """
        directory, resident_bytes = self._settings.storage_for(name)
        if not directory:
            return '', 0
        problems = self._servers.storage_problems(directory) if self._servers.is_root else []
        problems = self.allgather_json(problems, 'storage')[0]
        refuse_problems(name, directory, [(host, problem) for host, problem in problems])
        return directory, resident_bytes

    def note_call(self, call: str) -> None:
        """Count a collective call."""
        self._lifeline.count_call(call)

    # -- sharded updates -------------------------------------------------------------------------------------------

    @property
    def unshardable_reason(self) -> str:
        """The reason why updates cannot be sharded in this job, '' if they can."""
        if not self._collective.sums_together:
            return 'Horovod carries the dense sums (%s)' % self._job.transports
        rounding = [dtype for dtype in ('float16', 'int8') if self._settings.may_travel_as(dtype)]
        return 'values travel as %s (wire_dtype)' % ' or '.join(rounding) if rounding else ''

    def sharded_buckets(self, keys: List[Any]) -> List[ShardedBucket]:
        """Return new buckets for the dense weights among `keys` (on all workers)."""
        self._sharded += 1
        return sharded_buckets(self._collective, '%s.shards%d' % (self._prefix, self._sharded),
                               [self.routes[key] for key in keys])

    def add_bytes(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of arrays of all workers, each byte of which is zero on all workers but one (blocks)."""
        self._lifeline.count_call('states of sharded updates')
        return self._collective.add_bytes(values, self._prefix + '.states')

    # -- optimizer -------------------------------------------------------------------------------------------------

    def set_optimizer(self, optimizer: Any) -> None:
        """Update on the store from now on; a second optimizer begins without state, as in MXNet's own stores."""
        tables = self._tables()
        for route in tables:
            self._admit(optimizer, route.key, route.name, route.shape, route.dtype)
        if any(route.uses_servers for route in tables):
            self._introduce(optimizer)
        if self.updater is not None:
            for route in tables + self.on_demand_routes():
                route.forget_optimizer()
        self.updater = mx.optimizer.get_updater(optimizer)

    def set_updater(self, updater: Any) -> None:
        """Raise InputError."""
        raise InputError('_set_updater: servers cannot run a function of the script: use set_optimizer')

    def save_states(self, fname: str, dump_optimizer: bool) -> None:
        """Write all optimizer state to one file on worker 0 (not collective)."""
        if self._job.rank == 0:
            states_file.save(fname, self.updater, self._tables() + self.on_demand_routes(), dump_optimizer)

    def load_states(self, fname: str) -> None:
        """Read optimizer state on worker 0, and give it to all workers and servers."""
        self._lifeline.count_call('load_states')
        states_file.load(fname, self.updater, self._tables() + self.on_demand_routes(), self._collective, self._prefix)

    def _tables(self) -> List[Any]:
        """Return the routes of row_sparse weights."""
        return [route for route in self.routes.values() if route.sparse]

    # -- for Trainers ----------------------------------------------------------------------------------------------

    def attach(self, params: Dict[int, List[Any]], keeps_dense: bool, hints: Mapping[str, TablePlan]
               ) -> Dict[int, str]:
        """Agree on a Trainer's parameters, see :meth:`mxhybrid.kvstore.hybrid.Hybrid.attach`; return worker 0's names.
        """
        self._keeps_dense = keeps_dense
        self._context.take_hints(hints)
        # A Trainer may have just replaced another one.
        self._leases.meet(None, self._prefix + '.attach')
        names = self._agree('Trainer', [[key] + param for key, param in params.items()])
        local_names = [param[0] for param in params.values()]
        if names != local_names:
            self._context.take_hints({name: hints[local] for name, local in zip(names, local_names) if local in hints})
        self._agreed = {key: tuple(param[-1]) for key, param in params.items() if all(param[-1])}
        return dict(zip(params, names))

    def adopt(self, former: 'Distributed', keys_set: Set[Any]) -> None:
        """Take over keys and tables; see :meth:`mxhybrid.kvstore.hybrid.Hybrid.adopt`."""
        self._lease, self._prefix, self.routes = former._lease, former._prefix, former.routes
        self._chooser, self._tuner = former._chooser, former._tuner
        self._buckets, self._context = former._buckets, former._context
        self._reinitialise = {key: key in keys_set for key in self.routes}

    def any_of(self, flags: List[bool], waiting: str = '') -> List[bool]:
        """Return which flags are true on any worker; `waiting` names the call for a message about workers that wait."""
        return self._collective.any_of(flags, self._prefix + '.votes', waiting)

    def allgather_json(self, value: Any, operation: str) -> List[Any]:
        """Return the JSON `value` of every worker, in rank order."""
        return self._collective.allgather_json(value, '%s.%s' % (self._prefix, operation))

    def allreduce_numbers(self, values: np.ndarray) -> Callable[[], np.ndarray]:
        """Start to sum a few values over all workers; return a function that waits for the sums.

        The caller waits for them before the next call: Horovod refuses a name that is still in flight.
        """
        self._lifeline.count_call('a step of a Trainer')
        return self._collective.start_sum(values, self._prefix + '.step_consistency')

    def call_count(self, call: str) -> int:
        """Return how often this worker has made a collective call of this name."""
        return self._lifeline.calls.times(call)

    def busy(self) -> ContextManager[None]:
        """Surround work that may take long while the other workers wait: it does not count as a stall."""
        return self._lifeline.busy()

    def read_for_all(self, fname: str) -> bytes:
        """Return the contents of a file of worker 0 on all workers."""
        self._lifeline.count_call('a file for all')
        data = states_file.read_on_root(fname, self._collective, self._prefix + '.file')
        return states_file.broadcast_bytes(data, self._collective, self._prefix + '.file')

    def broadcast(self, array: Any, operation: str) -> None:
        """Overwrite a dense array with worker 0's (blocks)."""
        with self._lifeline.waiting(operation):
            self._collective.copy_from_worker_0(array, '%s.%s' % (self._prefix, operation))

    def barrier(self) -> None:
        """Wait for all workers."""
        self._collective.any(False, self._prefix + '.barrier')


def _digest(value: Any) -> np.ndarray:
    return np.frombuffer(hashlib.blake2b(repr(value).encode(), digest_size=8).digest(), np.int32)


def _declaration(param: Optional[List[Any]]) -> str:
    return 'no such parameter' if param is None else 'key %r: %s' % (param[0], ' '.join(map(str, param[1:])))
