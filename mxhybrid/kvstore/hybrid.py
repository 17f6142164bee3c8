"""The KVStore that ``kvstore='hybrid'`` gives: keys, checks and MXNet's forms of calls; backends do the work."""
import functools
import operator
import weakref
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

import mxnet as mx
import numpy as np
from mxnet.kvstore import KVStore, KVStoreBase

from ..base.errors import InputError
from ..base.log import get_logger
from ..base.settings import TablePlan
from ..job.join import join
from ..native import log_filter, trainers
from ..native.forks import fork_guard
from ..routes import checks
from ..telemetry.step_meter import NoMeter, StepMeter
from ..telemetry.traffic import Network, moved_between
from .distributed import Distributed
from .one_process import OneProcess
from .report import PRINT_AFTER_STEPS, PRINT_AT_STEP, plan_of, plan_table, steps_so_far

logger = get_logger(__name__)


def _unrecorded(method: Callable) -> Callable:
    """Keep a call's copies out of autograd: row_sparse layers call the store inside ``autograd.record()``."""
    @functools.wraps(method)
    def call(self: 'Hybrid', *args: Any, **keywords: Any) -> Any:
        self._job.check()
        with mx.autograd.pause():
            return method(self, *args, **keywords)
    return call


class _SamePushpull:
    """A call of pushpull with several keys that was checked: the same, with the same arrays, needs no other look."""

    def __init__(self, keys: Any, values: Any, outs: Any, work: List[Tuple[Any, List[Any], List[Any]]]):
        self._keys, self._given = list(keys), _flat(values) + ([] if outs is None else _flat(outs))
        self.work = work

    def is_of(self, keys: Any, values: Any, outs: Any, routes: Dict[Any, Any]) -> bool:
        """Whether a call is the same, and its keys still take the same routes."""
        if not all(isinstance(given, (list, tuple)) for given in (values, [] if outs is None else outs)):
            return False  # which is an error
        if list(keys) != self._keys or not all(routes.get(route.key) is route for route, _, _ in self.work):
            return False
        given = _flat(values) + ([] if outs is None else _flat(outs))
        return len(given) == len(self._given) and all(map(operator.is_, given, self._given))


def _flat(values: Any) -> List[Any]:
    """What was given for all keys, whether it is arrays or not."""
    return [array for value in values for array in (value if isinstance(value, (list, tuple)) else (value,))]


@KVStoreBase.register
class Hybrid(KVStore):
    """A key-value store that sends row_sparse parameters to parameter servers, dense ones to allreduce.

    Pass it, or its name ``'hybrid'``, to ``gluon.Trainer``, or use it like any ``mxnet.kvstore.KVStore``.  All
    workers make the same calls in the same order, beginning with this one, but for ``row_sparse_pull``, ``pull``,
    ``prefetch``, ``report`` and ``save_optimizer_states``.  Sums run over workers and devices and are not averaged.
    What a store holds on servers is given back once all workers have dropped it, see
    :mod:`mxhybrid.servers.resource_leases`.

    Parameters
    ----------
    **settings
        Any of those that :class:`mxhybrid.base.settings.Settings` declares, in any form that its check takes; a setting
        that is None counts as not given.

    Raises
    ------
    SettingError
        A setting that cannot work, on any worker, or that is not the same on all of them.
    JobError
        The other processes did not arrive in time.

    Notes
    -----
    Known limits: no gradient compression; no updater functions on the store (``_set_updater``) in a job of
    several workers; parameters on the servers are float16, float32 or float64.
    """

    #: By any store of this process: a further one with the same plan says nothing new.
    _plans_logged: Set[Tuple[Tuple[str, ...], ...]] = set()

    def __init__(self, **settings: Any):
        # KVStore.__init__ would need a native handle of our own; the one native store of the job is shared.
        self._job, checked = join(settings)
        if self._job.distributed:
            with fork_guard:  # what is forked meanwhile would have no standard error
                log_filter.suppress_repeated_logs()
        self._backend: Union[Distributed, OneProcess] = (
            Distributed(self._job, checked) if self._job.distributed
            else OneProcess(counts_rows=self._job.telemetry.measures))
        self._meter = self._job.telemetry.new_meter(self._backend.routes, self._job.network)
        self._names: Dict[Any, str] = {}
        self._reported = False
        #: Steps when a key was last initialised, and what this host had moved by then, which is none of a step's.
        self._initialised: Tuple[int, Network] = 0, {}
        self._same_call: Optional[_SamePushpull] = None
        #: A line about weights of which workers hold parts.
        self._parts = ''
        #: The Trainer whose parameters have the keys of this store, and their names.
        self._trainer: Optional[Tuple[Any, str]] = None

    def __del__(self) -> None:
        """Nothing to free here: the job owns the native store, and notices that this one is gone."""

    # -- identity ----------------------------------------------------------------------------------------------

    @property
    def handle(self) -> Any:
        """Handle of the native store underneath."""
        return self._backend.native.handle

    @property
    def type(self) -> str:
        """``'hybrid'``.  A name with 'dist' would switch on limits in MXNet's Trainer that do not hold here."""
        return 'hybrid'

    @property
    def rank(self) -> int:
        """Rank of this worker, equal to ``hvd.rank()``."""
        return self._job.rank

    @property
    def local_rank(self) -> int:
        """Number of this worker among those of its host, by which it may choose its GPU: ``mx.gpu(store.local_rank)``.
        """
        return self._job.topology.local_rank

    @property
    def num_workers(self) -> int:
        """Number of workers, equal to ``hvd.size()``."""
        return self._job.num_workers

    @property
    def num_servers(self) -> int:
        """Number of parameter servers, 0 in a job of one process."""
        return self._job.num_servers

    @property
    def _updater(self) -> Any:
        return self._backend.updater

    def is_capable(self, capability: str) -> bool:
        """Whether the store has a capability; the only one MXNet asks for is 'optimizer'."""
        if capability.lower() == self.OPTIMIZER:
            return True
        raise ValueError('Unknown capability: {}'.format(capability))

    def report(self) -> str:
        """A table of all parameters: shape, route, partitions, servers, and per step rows and bytes moved.

        Below it, what this host has sent to others and received from them, where rows travel by the lane; for tables
        whose route was measured or forced, the numbers that decided; and what this worker holds of split weights, and
        sends in exchanges between layers.
        """
        routes, (steps, before) = list(self._backend.routes.values()), self._initialised
        network = moved_between(before, self._job.network() or {}) if before else {}
        table = plan_table(self._job, routes, network, steps_so_far(routes) - steps)
        return '\n\n'.join([table] + [self._parts] * bool(self._parts))

    # -- initial values ------------------------------------------------------------------------------------------

    @_unrecorded
    def init(self, key: Any, value: Any) -> None:
        """Set the initial value of keys to worker 0's (collective, once per key)."""
        values = checks.one_value_each('init', checks.pairs('init', key, value))
        self._init('init', [(one_key, array, []) for one_key, array in values], 0)

    @_unrecorded
    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Set the initial value of keys to worker 0's and write it to `out` on all workers (collective)."""
        outs = dict(checks.pairs('broadcast', key, out))
        values = checks.one_value_each('broadcast', checks.pairs('broadcast', key, value))
        self._init('broadcast', [(one_key, array, outs[one_key]) for one_key, array in values], priority)

    def _init(self, call: str, given: List[Tuple[Any, Any, List[Any]]], priority: int) -> None:
        """Initialise keys with one value each, and write the values to outputs."""
        for key, value, outs in given:
            name = self._names.get(key, str(key))
            if not self._backend.may_init(key):
                raise InputError('%s: key %r (%s) was initialised before; push changes it' % (call, key, name))
            checks.stypes(call, name, [value], ('default', 'row_sparse'), 'convert it with tostype')
            checks.shapes(call, name, outs, value.shape)
            checks.stypes(call, name, outs, (value.stype,), 'give outputs the storage type of the value')
            if value.stype == 'row_sparse':
                checks.server_dtype(call, name, value.dtype)
                checks.initial_rows(call, name, value)
        for key, value, outs in given:
            name = self._names.get(key, str(key))
            with self._meter.call(call, parameter=name):
                self._backend.init(call, key, name, value, outs, priority)
        self._initialised = steps_so_far(list(self._backend.routes.values())), self._job.network() or {}

    # -- gradients and weights -------------------------------------------------------------------------------------

    def _route(self, call: str, key: Any) -> Any:
        routes = self._backend.routes
        if key not in routes:
            raise InputError('%s: key %r was never initialised: call init or broadcast with it first; known keys are %s'
                             % (call, key, ', '.join(map(repr, list(routes)[:10])) or 'none yet'))
        return routes[key]

    def _checked(self, call: str, key: Any, value: Any, given: bool = True) -> List[Tuple[Any, List[Any]]]:
        """Routes and arrays of a call, shapes checked; of values that are `given`, not of outputs, dtypes too."""
        work = []
        for one_key, arrays in checks.pairs(call, key, value):
            route = self._route(call, one_key)
            checks.shapes(call, route.name, arrays, route.shape)
            if given:
                checks.dtypes(call, route.name, arrays, route.dtype)
            work.append((route, arrays))
        return work

    @_unrecorded
    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Sum `value` over devices and workers into the keys, by the optimizer if one is set (collective).

        Row ids of a row_sparse array may come in any order and more than once: the rows of an id are added up.
        """
        work = self._checked('push', key, value)
        for route, arrays in work:
            checks.gradient(route, arrays)
        for route, arrays in work:
            with self._meter.call('push', route):
                self._backend.push(route, arrays, priority)
        self._maybe_report()

    @_unrecorded
    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Write the keys' values to `out`, cast to its dtype, after this worker's earlier pushes.

        row_sparse values are left out unless `ignore_sparse` is False, then all their rows are pulled.  For a
        dense key whose last push was row_sparse, a row_sparse `out` takes the summed gradient.
        """
        work = self._checked('pull', key, out, given=False)
        for route, outs in work:
            if route.sparse:
                checks.stypes('pull', route.name, outs, ('row_sparse',), 'or use row_sparse_pull')
        for route, outs in work:
            with self._meter.call('pull', route):
                self._backend.pull(route, outs, priority, ignore_sparse)

    @_unrecorded
    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Push dense values and pull the result into `out`, or back into `value` (collective).

        Several keys in one call travel together, which takes less than one call each; the first have the highest
        priority.
        """
        together = isinstance(key, (list, tuple)) and len(key) > 1
        if together and self._same_call is not None and self._same_call.is_of(key, value, out, self._backend.routes):
            self._pushpull_all(self._same_call.work, priority)
            return
        work = self._checked('pushpull', key, value)
        outs = work if out is None else self._checked('pushpull', key, out, given=False)
        for route, arrays in work + outs:
            checks.stypes('pushpull', route.name, arrays, ('default',), 'use push and row_sparse_pull')
            if route.sparse:
                raise InputError('pushpull: %s is row_sparse: use push and row_sparse_pull' % route.name)
        if together:
            self._same_call = _SamePushpull(key, value, out, [(route, arrays, targets) for (route, arrays), (_, targets)
                                                      in zip(work, outs)])
            self._pushpull_all(self._same_call.work, priority)
            return
        for (route, arrays), (_, targets) in zip(work, outs):
            with self._meter.call('pushpull', route):
                self._backend.pushpull(route, arrays, targets, priority)
        self._maybe_report()

    def _pushpull_all(self, work: Any, priority: int) -> None:
        with self._meter.call('pushpull', parameter='%d parameters' % len(work)):
            self._backend.pushpull_all(work, priority)
        self._maybe_report()

    @_unrecorded
    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Write the rows `row_ids` of row_sparse keys to `out`, cast to its dtype, after this worker's earlier pushes.

        Row ids need not be unique or sorted.  With one array of row ids, all outputs of a key get those rows.  The
        call may return before they are there; whatever reads `out` waits for them.
        """
        if isinstance(key, (list, tuple)):
            row_ids = [row_ids] if len(key) == 1 and isinstance(row_ids, mx.nd.NDArray) else row_ids
            if not all(isinstance(given, (list, tuple)) and len(given) == len(key) for given in (out, row_ids)):
                raise InputError('row_sparse_pull: %d keys need lists of %d outputs and %d row_ids, one a key'
                                 % (len(key), len(key), len(key)))
            if len(set(key)) != len(key):
                raise InputError('row_sparse_pull: a key occurs twice in %r: give it several outputs instead' % (key,))
            all_ids = list(row_ids)
        else:
            all_ids = [row_ids]
        work = self._checked('row_sparse_pull', key, out, given=False)
        wanted: List[List[np.ndarray]] = []
        for (route, outs), ids in zip(work, all_ids):
            if not route.sparse:
                raise InputError('row_sparse_pull: %s is dense: use pull' % route.name)
            checks.stypes('row_sparse_pull', route.name, outs, ('row_sparse',), 'rows need a row_sparse output')
            mine = list(ids) if isinstance(ids, (list, tuple)) else [ids]
            if len(mine) not in (1, len(outs)):
                raise InputError('row_sparse_pull: %s has %d outputs but %d arrays of row ids: give one, or one an '
                                 'output' % (route.name, len(outs), len(mine)))
            wanted.append([checks.wanted_rows('row_sparse_pull', route.name, ids, route.rows) for ids in mine])
        for (route, outs), mine in zip(work, wanted):
            with self._meter.call('row_sparse_pull', route):
                self._backend.pull_rows(route, mine, outs, priority)

    def prefetch(self, key: Any, row_ids: Any, priority: int = 0, after_push: bool = False) -> None:
        """Ask early for rows that ``row_sparse_pull`` will want next, so that they travel meanwhile.

        Rows change with every push: called after this step's pull, it asks when this step's push is made.  Asking
        for other rows than will be pulled costs their bytes, and no more.  A no-op where rows are not on servers.

        Parameters
        ----------
        key : int or str
        row_ids : NDArray or numpy.ndarray
            Need not be unique or sorted.
        priority : int, optional
        after_push : bool, optional
            The rows are for the first pull after the next push in any case.
        """
        route = self._route('prefetch', key)
        if not isinstance(row_ids, mx.nd.NDArray):
            row_ids = mx.nd.array(row_ids, dtype='int64', ctx=mx.cpu())
        ids = checks.wanted_rows('prefetch', route.name, row_ids, route.rows)
        self._backend.prefetch(route, ids, priority, after_push)

    @_unrecorded
    def repartition(self, key: Any, partitions: int) -> None:
        """Cut a table on the servers into another number of partitions, between two steps (collective).

        Weights and optimizer state move; training goes on as if nothing had happened.  A job of one process has no
        partitions and ignores the call.
        """
        route = self._route('repartition', key)
        self._backend.repartition(route, checks.partitions('repartition', route.name, partitions))

    # -- optimizer ---------------------------------------------------------------------------------------------------

    def set_optimizer(self, optimizer: Any) -> None:
        """Update weights in the store with `optimizer` from now on; changes to it reach the servers by themselves."""
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise InputError('set_optimizer: %r is not an mxnet.optimizer.Optimizer' % (optimizer,))
        self._backend.set_optimizer(optimizer)

    def _set_updater(self, updater: Any) -> None:
        self._backend.set_updater(updater)

    def set_gradient_compression(self, compression_params: Any) -> None:
        """Refused: neither path of this store has MXNet's gradient compression."""
        raise InputError('compression_params=%r: the hybrid store has no gradient compression; leave '
                         'compression_params out of the Trainer' % (compression_params,))

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write all optimizer state, also that on servers, to one file on worker 0; a no-op on the others.

        The file is an ordinary MXNet states file, as a Trainer in one process writes it.
        """
        self._need_updater('save_optimizer_states')
        self._backend.save_states(fname, dump_optimizer)

    @_unrecorded
    def load_optimizer_states(self, fname: str) -> None:
        """Read optimizer state on worker 0 and give it to all workers and servers (collective)."""
        self._need_updater('load_optimizer_states')
        self._backend.load_states(fname)

    def _need_updater(self, call: str) -> None:
        if self._updater is None:
            raise InputError('%s: the store has no optimizer: call set_optimizer first, or save the Trainer with '
                             'update_on_kvstore=True' % call)

    # -- used by the hooks ---------------------------------------------------------------------------------------------

    @property
    def meter(self) -> Union[StepMeter, NoMeter]:
        """What measures this store's steps."""
        return self._meter

    @property
    def backend(self) -> Union[Distributed, OneProcess]:
        """What does the work."""
        return self._backend

    @property
    def distributed(self) -> bool:
        """Whether the job has several processes."""
        return self._job.distributed

    def serve_trainer(self, trainer: Any) -> None:
        """Note the Trainer whose parameters get the keys of this store; InputError where another one has them."""
        if self._trainer is not None and self._trainer[0]() is not trainer:
            raise InputError("this store serves another Trainer already, whose parameters are %s, and keys of both are "
                             "numbers from 0: give each Trainer a store of its own, kvstore='hybrid' or another "
                             'mxhybrid.create()' % self._trainer[1])
        names = [param.name for param in trainers.params_of(trainer)]
        more = ' and %d more' % (len(names) - 3) if len(names) > 3 else ''
        self._trainer = weakref.ref(trainer), ', '.join(names[:3]) + more

    def attach(self, params: Dict[int, List[Any]], keeps_dense: bool, parts: str, planned: Mapping[str, TablePlan]
               ) -> None:
        """Learn about a Trainer's parameters (collective): name, dtype, storage types, devices, grad_req and shape by
        key, where a shape with zeros is not known yet; whether the store updates dense weights; a line about split
        ones; and what a plan says of tables, by name.
        """
        self._parts = parts
        self._names.update(self._backend.attach(params, keeps_dense, planned))

    @_unrecorded
    def push_own(self, key: Any, value: Any, optimizer: Any, priority: int, devices: Sequence[int]) -> None:
        """Push the gradient of a dense weight that servers hold, for `optimizer` to be applied there (collective)."""
        (route, arrays), = self._checked('push', key, value)
        checks.gradient(route, arrays)
        with self._meter.call('push', route):
            self._backend.push_own(route, arrays, optimizer, priority, list(devices))  # type: ignore[union-attr]
        self._maybe_report()

    @_unrecorded
    def pull_own(self, key: Any, ids: np.ndarray, priority: int) -> Any:
        """Rows `ids` (sorted, unique, not empty) of a dense weight on servers, as an array that is filled later."""
        route = self._route('pull', key)
        with self._meter.call('row_sparse_pull', route):
            return route.pull_own(ids, priority)

    def adopt(self, other: 'Hybrid', keys_set: Set[Any]) -> None:
        """Take over the keys and tables of a store that was given up; all will be initialised anew.

        Values of `keys_set` were set; the others' tables keep their rows, but not their optimizer state.
        """
        self._reported = other._reported
        self._backend.adopt(other._backend, keys_set)  # type: ignore[arg-type]
        self._meter = other._meter.over(self._backend.routes)

    def _barrier(self) -> None:
        self._backend.barrier()

    def _maybe_report(self) -> None:
        if self._reported:
            return
        steps = {route.traffic.steps for route in self._backend.routes.values() if route.traffic.steps}
        # At the end of a step, when all parameters have been pushed equally often, if that ever happens.
        self._reported = min(steps, default=0) >= PRINT_AFTER_STEPS and (len(steps) == 1 or max(steps) > PRINT_AT_STEP)
        plan = plan_of(list(self._backend.routes.values())) if self._reported and self.rank == 0 else ()
        if plan and plan not in self._plans_logged:
            self._plans_logged.add(plan)
            logger.info('plan:\n%s', self.report())
