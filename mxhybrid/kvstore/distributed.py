"""A job of several processes: finds the route of each key, has workers agree, and knows the optimizer."""
import hashlib
import itertools
from typing import Any, ContextManager, Dict, Iterable, List, Mapping, Optional, Set, Tuple

import mxnet as mx
import numpy as np

from ..base.errors import InputError
from ..base.log import get_logger
from ..base.settings import Settings, TablePlan, variable
from ..comm.float16 import safe_magnitude
from ..job.job import Job
from ..native.optimizer_state import rates_of
from ..native.optimizers import check_for_table, is_known, reference_of
from ..routes.chooser import Chooser
from ..routes.dense_buckets import DenseBuckets
from ..routes.partition_tuner import Tuner
from ..routes.route import Means
from ..routes.rows import read_gradient
from ..servers.row_wise_check import check_row_wise
from . import states_file
from .counted_names import without_counters

logger = get_logger(__name__)


class Distributed:
    """Backend of a store in a job of several processes; every method serves one key and is collective but for pulls.

    What to do with a gradient or a value is up to the key's route (:mod:`mxhybrid.routes.route`).
    """

    def __init__(self, job: Job, settings: Settings):
        assert job.collective is not None and job.servers is not None and job.guard.lifeline is not None
        assert job.leases is not None
        self._job, self._settings = job, settings
        self._collective, self._servers, self._lifeline = job.collective, job.servers, job.guard.lifeline
        self._leases = job.leases
        self._lease = job.leases.new()
        self._prefix = self._lease.prefix
        #: Route by key.
        self.routes: Dict[Any, Any] = {}
        #: Updates dense values of the store, in this process; its optimizer is that of tables, too.
        self.updater: Any = None
        self._tuner: Optional[Tuner] = None
        if settings.any_auto:
            self._tuner = Tuner(settings, job.collective, job.num_servers, self.routes, self._prefix)
        self._means = Means(job.collective, job.servers, settings, self._prefix, self._tuner)
        self._chooser = Chooser(self._means, job.topology.hosts, job.topology.groups(job.servers.on_lane), job.measured)
        self._buckets = DenseBuckets(job.collective, self._prefix)
        self._settings_checked: List[Any] = []
        self._keeps_dense = True
        self._agreed: Dict[Any, tuple] = {}
        # Keys to be initialised anew, and whether their values were set.
        self._reinitialise: Dict[Any, bool] = {}
        self._sums: Any = None
        # Keys that may still change over to own rows.
        self._unsettled: Set[Any] = set()

    @property
    def native(self) -> Any:
        """The native store, shared by all stores of the job."""
        return self._servers.native

    @property
    def _optimizer(self) -> Any:
        return None if self.updater is None else self.updater.optimizer

    # -- initial values ----------------------------------------------------------------------------------------

    def may_init(self, key: Any) -> bool:
        """Whether a key is new, or to be initialised anew."""
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
        """Have servers import a class that is not MXNet's, so that one that cannot ends the job before it trains."""
        if not is_known(optimizer):
            self._servers.command('find', name=reference_of(optimizer))

    def _check_dtype(self, call: str, name: str, dtype: Any) -> None:
        if self._settings.halves and np.dtype(dtype) != np.float32:
            raise InputError('%s: %s is %s, but with %s=float16 servers compute in float32 only: make it float32, '
                             'or leave %s out' % (call, name, np.dtype(dtype), variable('wire_dtype'),
                                                  variable('wire_dtype')))

    def _agree(self, call: str, keys: List[List[Any]]) -> List[str]:
        """Have all workers compare what they are about to initialise, ``[[key, name, …], …]``; return worker 0's names.

        Names may differ in the numbers that gluon counts up.
        """
        names = [key[1] for key in keys]
        keys = [key + ['route ' + self._means.settings.way_for(key[1]), 'own_rows=%d' % self._settings.own_rows]
                for key in keys]
        compared = [[key[0], name] + key[2:] for key, name in zip(keys, without_counters(names))]
        digest = np.concatenate([_digest(compared), _digest(names)])
        tag = '%s.agree' % self._prefix
        others = self._collective.gather(digest, tag)
        if all(np.array_equal(digest, other) for other in others):
            return names
        if all(np.array_equal(others[0][:2], other[:2]) for other in others):
            return [str(name) for name in self._collective.exchange(names, tag + '.names')[0]]
        everyone = self._collective.exchange(keys, tag + '.details')
        for rank, theirs in enumerate(everyone):
            for first, other in itertools.zip_longest(everyone[0], theirs):
                if first != other:
                    raise InputError('%s: workers disagree: worker 0 has %s, worker %d has %s. Build the same model, '
                                     'in the same order and with the same names, on every worker'
                                     % (call, _declaration(first), rank, _declaration(other)))
        return names

    # -- gradients and weights -----------------------------------------------------------------------------------

    def push(self, route: Any, arrays: List[Any], priority: int) -> None:
        """Sum arrays over devices and workers into a key, by the optimizer if one is set."""
        if arrays[0].stype != 'row_sparse':
            self._before_push(route)
            route.push(arrays, self.updater, priority)
            return
        # Before anything is sent, since it may refuse them.
        ids, rows = read_gradient(route, arrays, self._servers.trace)
        self._before_push(route)
        route = self._chooser.before_push(route, self._optimizer)
        self._put(route)
        route.push_rows(ids, rows, self.updater, priority)
        self._chooser.after_push(route, ids)

    def push_own(self, route: Any, arrays: List[Any], optimizer: Any, priority: int, devices: Iterable[int]) -> None:
        """Have servers update a dense weight that they hold, see :meth:`mxhybrid.routes.own_rows.OwnRows.update`."""
        ids, rows = read_gradient(route, arrays, self._servers.trace)
        self._before_push(route)
        route.update(ids, rows, optimizer, priority, devices)

    def _before_push(self, route: Any) -> None:
        if self.updater is not None:
            self._check_settings(self.updater.optimizer)
        self._lifeline.count_call('push of %s' % route.name)
        # Routes are chosen first: tables that leave the servers have no partitions.
        if self._tuner is None or not self._tuner.active:
            return
        if self._chooser.waits(route.key) or self._unsettled:
            self._tuner.pause()
        else:
            self._tuner.before_push(route.key)

    def _check_settings(self, optimizer: Any) -> None:
        """Refuse settings that a table cannot have before the first push of a step, so that nothing is updated."""
        settings = [getattr(optimizer, name, None) for name in ('wd', 'momentum', 'centered', 'multi_precision')]
        if settings != self._settings_checked:
            for route in self._tables():
                route.check_optimizer(optimizer)
            self._settings_checked = settings

    def _put(self, route: Any) -> None:
        """Have a key take this route from now on."""
        self.routes[route.key] = route

    def pushpull(self, route: Any, arrays: List[Any], outs: List[Any], priority: int) -> None:
        """Push dense arrays and write the key's value to `outs`."""
        self._before_push(route)
        route.pushpull(arrays, outs, self.updater, priority)

    def pushpull_all(self, work: List[Tuple[Any, List[Any], List[Any]]], priority: int) -> None:
        """Push dense arrays and write values to outputs, of several keys."""
        self._before_push(work[0][0])
        for place, (route, arrays, outs) in enumerate(self._buckets.pushpull(work, self.updater, priority)):
            route.pushpull(arrays, outs, self.updater, priority - place)

    def pull(self, route: Any, outs: List[Any], priority: int, ignore_sparse: bool) -> None:
        """Write a key's value to `outs`; for a dense key a row_sparse output takes the summed gradient."""
        route.pull(outs, self.updater, priority, ignore_sparse)

    def pull_rows(self, route: Any, wanted: List[np.ndarray], outs: List[Any], priority: int) -> None:
        """Write rows to `outs`: those of one array of ids to all outputs, or of one array to each."""
        self._chooser.pulled(route, sum(map(len, wanted)))
        route.pull_rows(wanted, outs, priority)

    def prefetch(self, route: Any, ids: np.ndarray, priority: int, after_push: bool) -> None:
        """Ask for rows that will be pulled."""
        route.prefetch(ids, priority, after_push)

    def repartition(self, route: Any, partitions: int) -> None:
        """Cut a table into another number of partitions, between two steps."""
        self._lifeline.count_call('repartition of %s' % route.name)
        route.repartition(partitions)

    # -- own rows --------------------------------------------------------------------------------------------------

    @property
    def own_rows(self) -> bool:
        """Whether servers may hold dense weights."""
        return self._settings.own_rows

    def pause_tuning(self, key: Any) -> None:
        """Have no table cut anew until :meth:`resume_tuning`: this key may change over to own rows."""
        self._unsettled.add(key)

    def resume_tuning(self, key: Any) -> None:
        """It is settled who holds the weight of this key."""
        self._unsettled.discard(key)

    def own_routes(self) -> List[Any]:
        """Routes of dense weights that servers hold."""
        return [route for route in self.routes.values() if route.holds_weight and not route.sparse]

    def serve(self, key: Any, weight: Any, state: Any, optimizer: Any) -> None:
        """Have the servers hold and update a dense weight, see :meth:`mxhybrid.routes.own_rows.OwnRows.fill`."""
        route = self.routes[key]
        self._lifeline.count_call('move of %s' % route.name)
        self._put(route.to_own_rows(weight, state, optimizer))

    def take_back(self, key: Any, weight: Any) -> Tuple[Any, List[np.ndarray]]:
        """End :meth:`serve`: what makes the optimizer state, if there is any, and its arrays; `weight`, if given, is
        the value now.
        """
        route = self.routes[key]
        # There is none if the store has just been given another optimizer.
        maker, found = (route.state_maker() if route.has_state else None), route.take_state()
        workers = route.give_up()
        if weight is not None:
            workers.keep(weight)
        self._put(workers)
        return maker, found

    def stop_serving(self, key: Any) -> None:
        """End :meth:`serve` and forget what the servers hold."""
        self._put(self.routes[key].give_up())

    # -- optimizer -------------------------------------------------------------------------------------------------

    def set_optimizer(self, optimizer: Any) -> None:
        """Update on the store from now on; a second optimizer starts without state, as in MXNet's own stores."""
        tables = self._tables()
        for route in tables:
            self._admit(optimizer, route.key, route.name, route.shape, route.dtype)
        if any(route.uses_servers for route in tables):
            self._introduce(optimizer)
        if self.updater is not None:
            for route in tables + self.own_routes():
                route.forget_optimizer()
        self.updater = mx.optimizer.get_updater(optimizer)

    def set_updater(self, updater: Any) -> None:
        """Refused."""
        raise InputError('_set_updater: functions cannot travel to the servers: use set_optimizer')

    def save_states(self, fname: str, dump_optimizer: bool) -> None:
        """Write all optimizer state to one file on worker 0 (not collective)."""
        if self._job.rank == 0:
            states_file.save(fname, self.updater, self._tables() + self.own_routes(), dump_optimizer)

    def load_states(self, fname: str) -> None:
        """Read optimizer state on worker 0 and give it to all workers and servers."""
        self._lifeline.count_call('load_states')
        states_file.load(fname, self.updater, self._tables() + self.own_routes(), self._collective, self._prefix)

    def _tables(self) -> List[Any]:
        """Routes of row_sparse weights."""
        return [route for route in self.routes.values() if route.sparse]

    # -- for Trainers ----------------------------------------------------------------------------------------------

    def attach(self, params: Dict[int, List[Any]], keeps_dense: bool, planned: Mapping[str, TablePlan]
               ) -> Dict[int, str]:
        """Agree on a Trainer's parameters, see :meth:`mxhybrid.kvstore.hybrid.Hybrid.attach`; return the names that
        worker 0 has for them.
        """
        self._keeps_dense = keeps_dense
        self._means.plan(planned)
        # A Trainer may have taken another one's place just now.
        self._leases.meet(None, self._prefix + '.attach')
        names = self._agree('Trainer', [[key] + param for key, param in params.items()])
        own = [param[0] for param in params.values()]
        if names != own:
            self._means.plan({name: planned[mine] for name, mine in zip(names, own) if mine in planned})
        self._agreed = {key: tuple(param[-1]) for key, param in params.items() if all(param[-1])}
        return dict(zip(params, names))

    def adopt(self, other: 'Distributed', keys_set: Set[Any]) -> None:
        """Take over keys and tables; see :meth:`mxhybrid.kvstore.hybrid.Hybrid.adopt`."""
        self._lease, self._prefix, self.routes = other._lease, other._prefix, other.routes
        self._chooser, self._tuner, self._sums = other._chooser, other._tuner, other._sums
        self._buckets, self._means = other._buckets, other._means
        self._reinitialise = {key: key in keys_set for key in self.routes}

    def votes(self, flags: List[bool], waiting: str = '') -> List[bool]:
        """Which flags are true on any worker; `waiting` says what for, should the others wait elsewhere."""
        return self._collective.any_of(flags, self._prefix + '.votes', waiting)

    def exchange(self, value: Any, what: str) -> List[Any]:
        """The JSON `value` of every worker, in rank order."""
        return self._collective.exchange(value, '%s.%s' % (self._prefix, what))

    @property
    def largest_gradient(self) -> float:
        """Up to which magnitude a float32 gradient surely survives the way through all workers."""
        return safe_magnitude(self._job.num_workers) if self._settings.halves else float('inf')

    def add_up(self, values: np.ndarray) -> Any:
        """Sum a few float64 values over all workers, to an array that is filled later and serves the next call, too."""
        if self._sums is None or len(self._sums) != len(values):
            self._sums = mx.nd.zeros(len(values), dtype=np.float64, ctx=mx.cpu())
        # One array for all calls: Horovod refuses a name that is still in flight, the engine makes it wait.
        self._sums[:] = values
        self._lifeline.count_call('a step of a Trainer')
        self._collective.allreduce_(self._sums, self._prefix + '.agreement')
        return self._sums

    def times(self, call: str) -> int:
        """How often this worker has made a collective call of this name."""
        return self._lifeline.times(call)

    def busy(self) -> ContextManager[None]:
        """Around what may take this worker long while the others wait: it does not count as a stall."""
        return self._lifeline.busy()

    def read_for_all(self, fname: str) -> bytes:
        """Contents of a file on worker 0, given to all workers."""
        self._lifeline.count_call('a file for all')
        data = states_file.read_on_root(fname, self._collective, self._prefix + '.file')
        return states_file.broadcast_bytes(data, self._collective, self._prefix + '.file')

    def spread(self, array: Any, what: str) -> None:
        """Overwrite a dense array with worker 0's (blocks)."""
        with self._lifeline.waiting(what):
            self._collective.broadcast_(array, '%s.%s' % (self._prefix, what))
            array.wait_to_read()

    def barrier(self) -> None:
        """Wait for all workers."""
        self._collective.any(False, self._prefix + '.barrier')


def _digest(value: Any) -> np.ndarray:
    return np.frombuffer(hashlib.blake2b(repr(value).encode(), digest_size=8).digest(), np.int32)


def _declaration(param: Optional[List[Any]]) -> str:
    return 'no such parameter' if param is None else 'key %r: %s' % (param[0], ' '.join(map(str, param[1:])))
