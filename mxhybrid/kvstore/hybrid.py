"""The KVStore that ``kvstore='hybrid'`` gives: MXNet's calls, which a backend carries out."""
import functools
import weakref
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

import mxnet as mx
import numpy as np
from mxnet.kvstore import KVStore, KVStoreBase

from ..base.errors import InputError
from ..base.log import get_logger
from ..base.settings import TablePlan
from ..base.text import listed
from ..job.join import join, resolve_store
from ..native import log_filter, trainers
from ..native.forks import fork_guard
from ..routes import checks
from ..routes.dense_buckets import PendingSums
from ..telemetry.step_meter import NoMeter, StepMeter
from ..telemetry.traffic import Network, moved_between
from .call_arguments import CallArguments, one_value_each, pairs, separate
from .distributed import Distributed
from .one_process import OneProcess
from .report import (
    PRINT_AFTER_STEPS,
    PRINT_AT_STEP,
    dynamic_tables_table,
    lags_table,
    route_rows,
    route_table,
    steps_so_far,
)
from .trainer_tables import tables_split_off

logger = get_logger(__name__)


def _unrecorded(method: Callable) -> Callable:
    """Keep the copies of a call out of autograd: row_sparse layers call the store inside ``autograd.record()``."""
    @functools.wraps(method)
    def call(self: 'Hybrid', *args: Any, **keywords: Any) -> Any:
        self._job.check()
        with mx.autograd.pause():
            return method(self, *args, **keywords)
    return call


@KVStoreBase.register
class Hybrid(KVStore):
    """A key-value store that sends row_sparse parameters to parameter servers, dense ones to allreduce.

    Pass it, or its name ``'hybrid'``, to ``gluon.Trainer``, or use it like any ``mxnet.kvstore.KVStore``.  All
    workers must make the same calls in the same order, also this one, except ``row_sparse_pull``, ``pull``,
    ``prefetch``, ``report`` and ``save_optimizer_states``.  Values are summed over workers and devices, not averaged.
    Servers free the memory of a store once all workers have dropped it, see :mod:`mxhybrid.servers.resource_leases`.
    Its settings, and the errors that it raises, are those of :func:`mxhybrid.create`.

    Notes
    -----
    Known limits: no gradient compression; no updater functions on the store (``_set_updater``) in a job of
    several workers; parameters on the servers are float16, float32 or float64.
    """

    #: Rows of the route tables that the stores of this process have logged: the same table is logged once.
    _tables_logged: Set[Tuple[Tuple[str, ...], ...]] = set()

    def __init__(self, **settings: Any):
        # KVStore.__init__ would need a native handle of our own; the one native store of the job is shared.
        request = resolve_store(settings)
        self._job = join(request)
        if self._job.distributed:
            with fork_guard:  # a process that is forked inside would have no standard error
                log_filter.suppress_repeated_logs()
        #: The object that carries out the calls.
        self.backend: Union[Distributed, OneProcess] = (
            Distributed(self._job, request.settings) if self._job.distributed
            else OneProcess(self._job.telemetry.measures, request.settings))
        #: The meter that measures this store's steps.
        self.meter: Union[StepMeter, NoMeter] = self._job.telemetry.new_meter(self.backend.routes, self._job.network)
        self._names: Dict[Any, str] = {}
        self._reported = False
        #: Steps when a key was last initialised, and the bytes that this host had moved by then, which belong to no
        #: step.
        self._initialised: Tuple[int, Network] = 0, {}
        self._arguments = CallArguments(self.backend, self._job.distributed)
        #: Lines of the report about weights that are sharded.
        self._shards = ''
        #: A weak reference to the hooks of the Trainer whose tables and updates the report describes.
        self._trainer_hooks: Callable[[], Any] = lambda: None
        #: The Trainer whose parameters have the keys of this store, and their names.
        self._trainer: Optional[Tuple[Any, str]] = None

    def __del__(self) -> None:
        """Free nothing: the job owns the native store, and notices that this store is gone."""

    # -- identity ----------------------------------------------------------------------------------------------

    @property
    def handle(self) -> Any:
        """Handle of the native store."""
        return self.backend.native.handle

    @property
    def type(self) -> str:
        """The name ``'hybrid'``.  A name with 'dist' would switch on limits of MXNet's Trainer that do not apply."""
        return 'hybrid'

    @property
    def rank(self) -> int:
        """Rank of this worker, equal to ``hvd.rank()``."""
        return self._job.rank

    @property
    def local_rank(self) -> int:
        """Number of this worker among the workers of its host, for example to choose a GPU: ``mx.gpu(local_rank)``."""
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
        return self.backend.updater

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Return whether the store has a capability; MXNet asks for 'optimizer' only."""
        if capability.lower() == KVStoreBase.OPTIMIZER:
            return True
        raise ValueError('Unknown capability: {}'.format(capability))

    def report(self) -> str:
        """Return the route table: shape, route, partitions and servers of each parameter, and rows and bytes a step.

        Five more parts follow where they apply: the bytes that this host has sent to other hosts and received from
        them by the lane; the numbers that decided, for tables whose route was measured or forced; the dynamic tables,
        with their rows so far; the staleness of pulled rows; and the shards of weights that this worker holds, with the
        bytes that it sends in redistributions between layers.
        """
        routes, (steps, before) = list(self.backend.routes.values()), self._initialised
        network = moved_between(before, self._job.network() or {}) if before else {}
        table = route_table(self._job, routes, network, steps_so_far(routes) - steps)
        trainer_hooks = self._trainer_hooks()
        dynamic = [] if trainer_hooks is None else trainer_hooks.tables.report()
        sharding = None if trainer_hooks is None else trainer_hooks.sharding
        served = [(route.name, route.server_table) for route in routes if route.server_table is not None]
        lags = lags_table(served + [(item.name, item.param.table) for item, _ in dynamic if item.param.is_served])
        parts = [dynamic_tables_table(dynamic), lags, self._shards,
                 '' if sharding is None else sharding.report_line()]
        return '\n\n'.join([table] + [text for text in parts if text])

    # -- initial values ------------------------------------------------------------------------------------------

    @_unrecorded
    def init(self, key: Any, value: Any) -> None:
        """Set the initial value of keys to worker 0's (collective, once per key)."""
        values = one_value_each('init', pairs('init', key, value))
        self._init('init', [(one_key, array, []) for one_key, array in values], 0)

    @_unrecorded
    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Set the initial value of keys to worker 0's, and write it to `out` on all workers (collective)."""
        outs = dict(pairs('broadcast', key, out))
        values = one_value_each('broadcast', pairs('broadcast', key, value))
        self._init('broadcast', [(one_key, array, outs[one_key]) for one_key, array in values], priority)

    def _init(self, call: str, work: List[Tuple[Any, Any, List[Any]]], priority: int) -> None:
        """Initialise keys with one value each, and write the values to outputs."""
        for key, value, outs in work:
            name = self._names.get(key, str(key))
            if not self.backend.may_init(key):
                raise InputError('%s: key %r (%s) was initialised before: initialise each key once, and change its '
                                 'value by push' % (call, key, name))
            checks.stypes(call, name, [value], ('default', 'row_sparse'), 'convert it with tostype')
            checks.shapes(call, name, outs, value.shape)
            checks.stypes(call, name, outs, (value.stype,), 'give outputs the storage type of the value')
            if value.stype == 'row_sparse':
                checks.server_dtype(call, name, value.dtype)
                checks.initial_rows(call, name, value)
        values = separate([[value] for _, value, _ in work], [outs for _, _, outs in work])
        for (key, _, outs), (value,) in zip(work, values):
            name = self._names.get(key, str(key))
            with self.meter.call(call, parameter=name):
                self.backend.init(call, key, name, value, outs, priority)
        self._initialised = steps_so_far(list(self.backend.routes.values())), self._job.network() or {}

    # -- gradients and weights -------------------------------------------------------------------------------------

    @_unrecorded
    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Sum `value` over devices and workers into the keys, by the optimizer if one is set (collective).

        Row ids of a row_sparse array may come in any order and more than once: the rows of an id are added up.
        """
        for route, arrays in self._arguments.gradients(key, value):
            with self.meter.call('push', route):
                self.backend.push(route, arrays, priority)
        self._maybe_report()

    @_unrecorded
    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Write the keys' values to `out`, cast to its dtype, after this worker's earlier pushes.

        row_sparse values are left out, unless `ignore_sparse` is False: then all their rows are pulled.  For a dense
        key whose last push was row_sparse, a row_sparse `out` takes the summed gradient.
        """
        for route, outs in self._arguments.outputs(key, out):
            with self.meter.call('pull', route):
                self.backend.pull(route, outs, priority, ignore_sparse)

    @_unrecorded
    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Push dense values and pull the result into `out`, or back into `value` (collective).

        Several keys in one call travel together, which takes less time than a call for each; the first keys have the
        highest priority.
        """
        work = self._arguments.pushpull(key, value, out)
        if isinstance(key, (list, tuple)) and len(key) > 1:
            with self.meter.call('pushpull', parameter='%d parameters' % len(work)):
                self.backend.pushpull_all(work, priority)
        else:
            for route, arrays, outs in work:
                with self.meter.call('pushpull', route):
                    self.backend.pushpull(route, arrays, outs, priority)
        self._maybe_report()

    @_unrecorded
    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Write the rows `row_ids` of row_sparse keys to `out`, cast to its dtype, after this worker's earlier pushes.

        Row ids need not be unique or sorted.  With one array of row ids, all outputs of a key get those rows.  The
        call may return before the rows have arrived; whatever reads `out` waits for them.
        """
        for route, outs, ids in self._arguments.rows(key, out, row_ids):
            with self.meter.call('row_sparse_pull', route):
                self.backend.pull_rows(route, ids, outs, priority)

    def prefetch(self, key: Any, row_ids: Any, priority: int = 0, after_push: bool = False) -> None:
        """Request the rows of the next ``row_sparse_pull`` early, so that they travel while the worker computes.

        Rows change with every push: a request that is made after this step's pull is sent after this step's push.
        Rows that are requested but not pulled cost bytes and have no other effect.  The call does nothing if the rows
        are not on servers.

        Parameters
        ----------
        key : int or str
        row_ids : NDArray or numpy.ndarray
            Need not be unique or sorted.
        priority : int, optional
        after_push : bool, optional
            Wait for the next push in any case: the rows are for the first pull after that push.
        """
        route = self._arguments.route('prefetch', key)
        if not isinstance(row_ids, mx.nd.NDArray):
            row_ids = mx.nd.array(row_ids, dtype='int64', ctx=mx.cpu())
        ids = checks.wanted_rows('prefetch', route.name, row_ids, route.rows)
        route.prefetch(ids, priority, after_push)

    @_unrecorded
    def repartition(self, key: Any, partitions: int) -> None:
        """Cut a table on the servers into another number of partitions, between two steps (collective).

        Weights and optimizer state move with the rows, and results stay the same.  A job of one process has no
        partitions and ignores the call.
        """
        route = self._arguments.route('repartition', key)
        count = checks.partitions('repartition', route.name, partitions)
        self.backend.note_call('repartition of %s' % route.name)
        route.repartition(count)

    # -- optimizer ---------------------------------------------------------------------------------------------------

    def set_optimizer(self, optimizer: Any) -> None:
        """Update weights in the store with `optimizer` from now on; later changes to it reach the servers, too."""
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise InputError('set_optimizer: %r is not an optimizer: give an object of mxnet.optimizer.Optimizer'
                             % (optimizer,))
        self.backend.set_optimizer(optimizer)

    def _set_updater(self, updater: Any) -> None:
        self.backend.set_updater(updater)

    def set_gradient_compression(self, compression_params: Any) -> None:
        """Raise InputError: the store has no gradient compression."""
        raise InputError('compression_params=%r: the hybrid store has no gradient compression; leave '
                         'compression_params out of the Trainer' % (compression_params,))

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write all optimizer state, also that of servers, to one file on worker 0; do nothing on other workers.

        The file is an ordinary MXNet states file, as a Trainer in one process writes it.
        """
        self._need_updater('save_optimizer_states')
        self.backend.save_states(fname, dump_optimizer)

    @_unrecorded
    def load_optimizer_states(self, fname: str) -> None:
        """Read optimizer state on worker 0 and give it to all workers and servers (collective)."""
        self._need_updater('load_optimizer_states')
        self.backend.load_states(fname)

    def _need_updater(self, call: str) -> None:
        if self._updater is None:
            raise InputError('%s: the store has no optimizer: call set_optimizer first, or save the Trainer with '
                             'update_on_kvstore=True' % call)

    # -- used by the hooks ---------------------------------------------------------------------------------------------

    @property
    def distributed(self) -> bool:
        """True if the job has several processes."""
        return self._job.distributed

    def serve_trainer(self, trainer: Any) -> None:
        """Note the Trainer whose parameters get the keys of this store; InputError if another Trainer has them."""
        if self._trainer is not None and self._trainer[0]() is not trainer:
            raise InputError('this store already serves another Trainer, whose parameters are %s, and the keys of both '
                             "are numbers from 0: give each Trainer a store of its own, kvstore='hybrid' or another "
                             'mxhybrid.create()' % self._trainer[1])
        names = [param.name for param in [*trainers.params_of(trainer), *tables_split_off(trainer)]]
        self._trainer = weakref.ref(trainer), listed(names)

    def attach(self, params: Dict[int, List[Any]], keeps_dense: bool, shards: str, hints: Mapping[str, TablePlan]
               ) -> None:
        """Learn about a Trainer's parameters (collective).

        `params` has name, dtype, storage types, devices, grad_req and shape by key; a shape with zeros is not known
        yet.  `keeps_dense` says whether the store updates dense weights, `shards` describes sharded weights, and
        `hints` has a plan's choices for tables, by name.
        """
        self._shards = shards
        self._names.update(self.backend.attach(params, keeps_dense, hints))

    @_unrecorded
    def push_on_demand(self, key: Any, value: Any, optimizer: Any, priority: int, devices: Sequence[int]) -> None:
        """Push the gradient of a dense weight on servers, which apply `optimizer` (collective)."""
        (route, arrays), = self._arguments.gradients(key, value)
        with self.meter.call('push', route):
            self.backend.push_on_demand(route, arrays, optimizer, priority, list(devices))  # type: ignore[union-attr]
        self._maybe_report()

    @_unrecorded
    def pull_on_demand(self, key: Any, ids: np.ndarray, priority: int) -> Any:
        """Return rows `ids` (sorted, unique, not empty) of a dense weight on servers, as an array that is filled later.
        """
        route = self._arguments.route('pull', key)
        with self.meter.call('row_sparse_pull', route):
            return route.pull_on_demand(ids, priority)

    @_unrecorded
    def sum_for_update(self, keys: Sequence[Any], gradients: Sequence[Any], priority: int) -> List[PendingSums]:
        """Sum dense gradients in place (collective), except the sums that are returned.

        These take the place of the gradients when the caller updates the weights with them, or writes them.
        """
        pending: List[PendingSums] = []
        with self.meter.call('pushpull', parameter='%d parameters' % len(keys)):
            self.backend.pushpull_all(self._arguments.pushpull(keys, gradients, None), priority, pending)
        self._maybe_report()
        return pending

    @_unrecorded
    def sum_sharded(self, keys: Sequence[Any], start_sums: Callable[[], None]) -> None:
        """Call ``start_sums()``, which starts the sums of sharded gradients of these keys (collective)."""
        with self.meter.call('pushpull', parameter='%d parameters' % len(keys)):
            self.backend.before_push(self._arguments.route('pushpull', keys[0]))  # type: ignore[union-attr]
            start_sums()
        self._maybe_report()

    def show_tables(self, trainer_hooks: Any) -> None:
        """Show a Trainer's dynamic tables in records of steps, and these and its sharded updates in the report."""
        self._trainer_hooks = reference = weakref.ref(trainer_hooks)

        def tables() -> Any:
            hooks = reference()
            return () if hooks is None else hooks.tables
        self.meter.show_tables(tables)

    def adopt(self, former: 'Hybrid', keys_set: Set[Any]) -> None:
        """Take over the keys and tables of a store that its Trainer gave up; all keys will be initialised again.

        Values of `keys_set` were set.  Tables of other keys keep their rows, but not their optimizer state.
        """
        self._reported = former._reported
        self.backend.adopt(former.backend, keys_set)  # type: ignore[arg-type]
        self.meter = former.meter.over(self.backend.routes)

    def _barrier(self) -> None:
        self.backend.barrier()

    def _maybe_report(self) -> None:
        if self._reported:
            return
        steps = {route.traffic.steps for route in self.backend.routes.values() if route.traffic.steps}
        # At the end of a step, when all parameters have been pushed equally often, if that ever happens.
        self._reported = min(steps, default=0) >= PRINT_AFTER_STEPS and (len(steps) == 1 or max(steps) > PRINT_AT_STEP)
        rows = route_rows(list(self.backend.routes.values())) if self._reported and self.rank == 0 else ()
        if rows and rows not in self._tables_logged:
            self._tables_logged.add(rows)
            logger.info('routes:\n%s', self.report())
