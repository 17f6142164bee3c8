"""The KVStore that ``kvstore='hybrid'`` gives: keys and checks here, transport in :mod:`mxhybrid.routes`."""
import functools
import hashlib
import itertools
from typing import Any, Callable, Dict, List, Optional

import mxnet as mx
import numpy as np
from mxnet.kvstore import KVStore, KVStoreBase

from . import checks, states
from .arrays import make_row_sparse
from .errors import InputError
from .job import Job, join
from .log import get_logger
from .optimizers import check_for_table
from .report import PRINT_AFTER_STEPS, plan
from .routes import Dense, Route, Sparse, rows_of
from .settings import resolve

logger = get_logger(__name__)


def _unrecorded(method: Callable) -> Callable:
    """Keep a call's copies out of autograd: row_sparse layers call the store inside ``autograd.record()``."""
    @functools.wraps(method)
    def call(*args: Any, **keywords: Any) -> Any:
        with mx.autograd.pause():
            return method(*args, **keywords)
    return call


class Local(Route):
    """A parameter in a job of one process: MXNet's own store does the work."""

    kind = 'local'


@KVStoreBase.register
class Hybrid(KVStore):
    """A key-value store that sends row_sparse parameters to parameter servers, dense ones to allreduce.

    Pass it, or its name ``'hybrid'``, to ``gluon.Trainer``, or use it like any ``mxnet.kvstore.KVStore``.  All
    workers make the same calls in the same order, but for ``row_sparse_pull``, ``pull`` and
    ``save_optimizer_states``.  Sums run over workers and devices and are not averaged.

    Parameters
    ----------
    partitions : int, str or dict of str to int, optional
        Partitions of every table on the servers: one count, or counts by name pattern, ``{'embed*': 8}`` or
        ``'embed*=8,*=2'``.  Default: one per server.
    servers_per_host : int, optional
        Parameter server processes that ``horovodrun`` jobs start on each host, default 1.
    timeout : float, optional
        Seconds to wait for the other processes while the job starts.
    log_level : str, optional
        Level of the ``mxhybrid`` logger.

    Raises
    ------
    SettingError
        A setting that cannot work.
    JobError
        The other processes did not arrive in time.

    Notes
    -----
    Known limits: no gradient compression; no updater functions on the store (``_set_updater``) in a job of
    several workers; parameters on the servers are float16, float32 or float64.
    """

    def __init__(self, **keywords: Any):
        # KVStore.__init__ would need a native handle of our own; the one native store of the job is shared.
        self._settings = resolve(keywords)
        self._job: Job = join(self._settings)
        self._id = self._job.next_store_id()
        self._prefix = 'hybrid%d' % self._id
        self._routes: Dict[Any, Route] = {}
        self._local: Optional[KVStore] = None if self._job.distributed else mx.kv.create('device')
        self._own_updater: Any = None
        self._optimizer: Any = None
        self._names: Dict[Any, str] = {}
        self._keeps_dense = True
        self._reinitialise: Dict[Any, bool] = {}
        self._agreed: Dict[Any, tuple] = {}
        self._flags: Any = None
        self._reported = False
        self._is_p3 = False

    def __del__(self) -> None:
        """Nothing to free: the job owns the native store."""

    # -- identity ----------------------------------------------------------------------------------------------

    @property
    def handle(self) -> Any:  # type: ignore[override]
        """Handle of the native store underneath."""
        return self._local.handle if self._local is not None else self._servers.native.handle

    @property
    def type(self) -> str:
        """``'hybrid'``.  A name with 'dist' would switch on limits in MXNet's Trainer that do not hold here."""
        return 'hybrid'

    @property
    def rank(self) -> int:
        """Rank of this worker, equal to ``hvd.rank()``."""
        return self._job.rank

    @property
    def num_workers(self) -> int:
        """Number of workers, equal to ``hvd.size()``."""
        return self._job.num_workers

    @property
    def num_servers(self) -> int:
        """Number of parameter servers, 0 in a job of one process."""
        return self._job.num_servers

    @property
    def _servers(self) -> Any:
        return self._job.servers

    @property
    def _collective(self) -> Any:
        return self._job.collective

    @property
    def _updater(self) -> Any:
        return self._local._updater if self._local is not None else self._own_updater

    def is_capable(self, capability: str) -> bool:
        """Whether the store has a capability; the only one MXNet asks for is 'optimizer'."""
        if capability.lower() == self.OPTIMIZER:
            return True
        raise ValueError('Unknown capability: {}'.format(capability))

    def report(self) -> str:
        """A table of all parameters: shape, route, partitions, servers, and per step rows and bytes moved."""
        return plan(self._job, list(self._routes.values()))

    # -- keys --------------------------------------------------------------------------------------------------

    def _name(self, key: Any) -> str:
        return self._names.get(key, str(key))

    def _route(self, call: str, key: Any) -> Any:
        if key not in self._routes:
            raise InputError('%s: key %r was never initialised: call init or broadcast with it first; known keys are %s'
                             % (call, key, ', '.join(map(repr, list(self._routes)[:10])) or 'none yet'))
        return self._routes[key]

    def _agree(self, call: str, keys: List[List[Any]]) -> None:
        """Have all workers compare what they are about to initialise, ``[[key, name, …], …]``."""
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

    def _partitions_for(self, name: str, rows: int) -> int:
        wanted = self._settings.partitions_for(name)
        if wanted is None:
            return min(self.num_servers, rows)
        if wanted > rows and self.rank == 0:
            logger.warning('partitions=%d is more than the %d rows of %s: using %d', wanted, rows, name, rows)
        return wanted

    # -- initial values ------------------------------------------------------------------------------------------

    @_unrecorded
    def init(self, key: Any, value: Any) -> None:
        """Set the initial value of keys to worker 0's (collective, once per key)."""
        for one_key, arrays in checks.pairs('init', key, value):
            self._init('init', one_key, arrays[0], [], 0)

    @_unrecorded
    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Set the initial value of keys to worker 0's and write it to `out` on all workers (collective)."""
        outs = dict(checks.pairs('broadcast', key, out))
        for one_key, arrays in checks.pairs('broadcast', key, value):
            self._init('broadcast', one_key, arrays[0], outs[one_key], priority)

    def _init(self, call: str, key: Any, value: Any, outs: List[Any], priority: int) -> None:
        name = self._name(key)
        if key in self._routes and key not in self._reinitialise:
            raise InputError('%s: key %r (%s) was initialised before; push changes it' % (call, key, name))
        checks.stypes(call, name, [value], ('default', 'row_sparse'), 'convert it with tostype')
        checks.shape_and_dtype(call, name, outs, value.shape, value.dtype)
        checks.stypes(call, name, outs, (value.stype,), 'give outputs the storage type of the value')
        if value.stype == 'row_sparse':
            checks.server_dtype(call, name, value.dtype)
            if self._optimizer is not None and self._job.distributed:
                check_for_table(self._optimizer, name, value.dtype, self._optimizer._get_wd(key))
        if self._local is not None:
            self._routes[key] = Local(key, name, value)
            if value.stype == 'row_sparse':
                # MXNet's sparse optimizers want every row stored, also those of zeros that tostype left out.
                everything = np.arange(value.shape[0], dtype=np.int64)
                value = make_row_sparse(everything, rows_of(value)(everything), value.shape)
            if outs:
                self._local.broadcast(key, value, outs, priority)
            else:
                self._local.init(key, value)
            return
        self._job.lifeline.count_call()
        if self._agreed.get(key) != tuple(value.shape):
            self._agree(call, [[key, name, str(np.dtype(value.dtype)), value.stype, list(value.shape)]])
        if value.stype == 'row_sparse':
            self._init_sparse(key, name, value)
            if outs:
                self.pull(key, outs, priority, ignore_sparse=False)
            return
        if key not in self._reinitialise:
            self._routes[key] = Dense(key, name, value, self._prefix, self._collective)
        self._reinitialise.pop(key, None)
        self._routes[key].broadcast(value, outs, self._keeps_dense or not outs, priority)

    def _init_sparse(self, key: Any, name: str, value: Any) -> None:
        assign = self._reinitialise.pop(key, None)
        if assign is None:
            wanted = self._partitions_for(name, value.shape[0])
            self._routes[key] = Sparse(key, name, value, self._servers, self._prefix, wanted)
        else:
            self._routes[key].restart(value if assign else None)

    # -- gradients and weights -------------------------------------------------------------------------------------

    @_unrecorded
    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Sum `value` over devices and workers into the keys, by the optimizer if one is set (collective)."""
        work: List[Callable[[], None]] = []
        for one_key, arrays in checks.pairs('push', key, value):
            route = self._route('push', one_key)
            checks.shape_and_dtype('push', route.name, arrays, route.shape, route.dtype)
            work.append(self._push_work(route, arrays, priority))
        if self._local is not None:
            self._local.push(key, value, priority)
            return
        for step in work:
            self._job.lifeline.count_call()
            step()
        self._maybe_report()

    def _push_work(self, route: Any, arrays: List[Any], priority: int) -> Callable[[], None]:
        if isinstance(route, Sparse):
            checks.stypes('push', route.name, arrays, ('row_sparse',),
                          "its weight is row_sparse; convert the gradient with tostype('row_sparse')")
            return lambda: self._push_sparse(route, arrays, priority)
        checks.stypes('push', route.name, arrays, ('default', 'row_sparse'), 'convert it with tostype')
        if len({array.stype for array in arrays}) > 1:
            raise InputError('push: %s gets dense and row_sparse values from different devices: use one storage type'
                             % route.name)
        if arrays[0].stype == 'row_sparse':
            checks.server_dtype('push', route.name, arrays[0].dtype)
            return lambda: self._push_rows(route, arrays, priority)
        return lambda: self._push_dense(route, arrays, priority)

    def _push_sparse(self, route: Sparse, arrays: List[Any], priority: int) -> None:
        optimizer = self._optimizer
        if optimizer is not None:
            count = optimizer._index_update_count.get(route.key, optimizer.begin_num_update)
            optimizer._update_count(route.key)
            route.table.set_optimizer(optimizer, optimizer._get_lr(route.key), optimizer._get_wd(route.key), count)
        route.push(arrays, priority)

    def _push_rows(self, route: Dense, arrays: List[Any], priority: int) -> None:
        wanted = self._partitions_for(route.name, route.rows)
        route.push_rows(arrays, self._servers, wanted, self._prefix, priority)
        if self._own_updater is not None:
            self._own_updater(route.key, route.summed_rows(priority=priority), self._stored(route))

    def _push_dense(self, route: Dense, arrays: List[Any], priority: int) -> None:
        if self._own_updater is None:
            route.stored = mx.nd.empty(route.shape, ctx=arrays[0].context, dtype=route.dtype)
            route.sum_into(route.stored, arrays, priority)
            return
        merged = route.scratch(arrays[0])
        route.sum_into(merged, arrays, priority)
        self._own_updater(route.key, merged, self._stored(route))

    def _stored(self, route: Dense) -> Any:
        if route.stored is None:
            raise InputError('%s: the store holds no value of it: set the optimizer before init or broadcast' % route.name)
        return route.stored

    @_unrecorded
    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Write the keys' values to `out`, after this worker's earlier pushes.

        row_sparse values are left out unless `ignore_sparse` is False, then all their rows are pulled.  For a
        dense key whose last push was row_sparse, a row_sparse `out` takes the summed gradient.
        """
        for one_key, outs in checks.pairs('pull', key, out):
            route = self._route('pull', one_key)
            checks.shape_and_dtype('pull', route.name, outs, route.shape, route.dtype)
            if self._local is not None:
                continue
            if isinstance(route, Sparse):
                checks.stypes('pull', route.name, outs, ('row_sparse',), 'or use row_sparse_pull')
                if not ignore_sparse:
                    route.pull(np.arange(route.rows, dtype=np.int64), outs, priority)
                continue
            sparse_outs = [array for array in outs if array.stype == 'row_sparse']
            if sparse_outs and route.table is None:
                raise InputError('pull: %s is dense, give it a dense output' % route.name)
            if sparse_outs:
                route.summed_rows(sparse_outs, priority)
            for array in outs:
                if array.stype != 'row_sparse':
                    self._stored(route).copyto(array)
        if self._local is not None:
            self._local.pull(key, out, priority, ignore_sparse)

    @_unrecorded
    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Push dense values and pull the result into `out`, or back into `value` (collective)."""
        outs = dict(checks.pairs('pushpull', key, value if out is None else out))
        values = checks.pairs('pushpull', key, value)
        for one_key, arrays in values:
            route = self._route('pushpull', one_key)
            for group in (arrays, outs[one_key]):
                checks.shape_and_dtype('pushpull', route.name, group, route.shape, route.dtype)
                checks.stypes('pushpull', route.name, group, ('default',), 'use push and row_sparse_pull')
            if isinstance(route, Sparse):
                raise InputError('pushpull: %s is row_sparse: use push and row_sparse_pull' % route.name)
        if self._local is not None:
            self._local.pushpull(key, value, out, priority)
            return
        for one_key, arrays in values:
            self._job.lifeline.count_call()
            self._pushpull(self._routes[one_key], arrays, outs[one_key], priority)
        self._maybe_report()

    def _pushpull(self, route: Any, arrays: List[Any], outs: List[Any], priority: int) -> None:
        if self._own_updater is not None:
            self._push_dense(route, arrays, priority)
            source = route.stored
        else:
            # As in MXNet's local store, what was pushed last is the value; no copy is made of it.
            source = route.stored = outs[0]
            route.sum_into(source, arrays, priority)
        for array in outs:
            if array is not source:
                source.copyto(array)

    @_unrecorded
    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Write the rows `row_ids` of row_sparse keys to `out`, after this worker's earlier pushes.

        Row ids need not be unique or sorted.  With one array of row ids, all outputs of a key get those rows.
        """
        groups = checks.pairs('row_sparse_pull', key, out)
        wanted: List[List[np.ndarray]] = []
        for index, (one_key, outs) in enumerate(groups):
            route = self._route('row_sparse_pull', one_key)
            if isinstance(route, Dense):
                raise InputError('row_sparse_pull: %s is dense: use pull' % route.name)
            checks.stypes('row_sparse_pull', route.name, outs, ('row_sparse',), 'rows need a row_sparse output')
            checks.shape_and_dtype('row_sparse_pull', route.name, outs, route.shape, route.dtype)
            mine = row_ids[index] if isinstance(key, (list, tuple)) and len(key) > 1 else row_ids
            mine = list(mine) if isinstance(mine, (list, tuple)) else [mine]
            if len(mine) not in (1, len(outs)):
                raise InputError('row_sparse_pull: %s has %d outputs but %d arrays of row ids: give one, or one an output'
                                 % (route.name, len(outs), len(mine)))
            wanted.append([checks.wanted_rows('row_sparse_pull', route.name, ids, route.rows) for ids in mine])
        if self._local is not None:
            self._local.row_sparse_pull(key, out, priority, row_ids)
            return
        for (one_key, outs), mine in zip(groups, wanted):
            if len(mine) == 1:
                self._routes[one_key].pull(mine[0], outs, priority)
            else:
                self._routes[one_key].pull_each(mine, outs, priority)

    # -- optimizer ---------------------------------------------------------------------------------------------------

    def set_optimizer(self, optimizer: Any) -> None:
        """Update weights in the store with `optimizer` from now on; changes to it reach the servers by themselves."""
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise InputError('set_optimizer: %r is not an mxnet.optimizer.Optimizer' % (optimizer,))
        if self._local is not None:
            self._local.set_optimizer(optimizer)
            return
        for route in self._routes.values():
            if isinstance(route, Sparse):
                check_for_table(optimizer, route.name, route.dtype, optimizer._get_wd(route.key))
        self._optimizer = optimizer
        self._own_updater = mx.optimizer.get_updater(optimizer)

    def _set_updater(self, updater: Any) -> None:
        if self._local is None:
            raise InputError('_set_updater: functions cannot travel to the servers: use set_optimizer')
        self._local._set_updater(updater)

    def set_gradient_compression(self, compression_params: Any) -> None:
        """Refused: neither path of this store has MXNet's gradient compression."""
        raise InputError('compression_params=%r: the hybrid store has no gradient compression; leave compression_params '
                         'out of the Trainer' % (compression_params,))

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write all optimizer state, also that on servers, to one file on worker 0; a no-op on the others.

        The file is an ordinary MXNet states file, as a Trainer in one process writes it.
        """
        self._need_updater('save_optimizer_states')
        if self._local is not None:
            self._local.save_optimizer_states(fname, dump_optimizer)
        elif self.rank == 0:
            states.save(fname, self._own_updater, self._sparse_routes(), dump_optimizer)

    @_unrecorded
    def load_optimizer_states(self, fname: str) -> None:
        """Read optimizer state on worker 0 and give it to all workers and servers (collective)."""
        self._need_updater('load_optimizer_states')
        if self._local is not None:
            self._local.load_optimizer_states(fname)
            return
        self._job.lifeline.count_call()
        states.load(fname, self._own_updater, self._sparse_routes(), self._collective, self._prefix)
        self._optimizer = self._own_updater.optimizer

    def _need_updater(self, call: str) -> None:
        if self._updater is None:
            raise InputError('%s: the store has no optimizer: call set_optimizer first, or save the Trainer with '
                             'update_on_kvstore=True' % call)

    def _sparse_routes(self) -> List[Sparse]:
        return [route for route in self._routes.values() if isinstance(route, Sparse)]

    # -- used by the hooks ---------------------------------------------------------------------------------------------

    def attach(self, params: Dict[int, List[Any]], keeps_dense: bool) -> None:
        """Learn about a Trainer's parameters (collective).

        Parameters
        ----------
        params : dict
            Name, dtype, storage types, grad_req and shape by key; a shape with zeros is not known yet.
        keeps_dense : bool
            Whether the store updates dense weights.
        """
        self._names.update({key: param[0] for key, param in params.items()})
        self._keeps_dense = keeps_dense
        if self._local is None:
            self._agree('Trainer', [[key] + param for key, param in params.items()])
            self._agreed = {key: tuple(param[-1]) for key, param in params.items() if all(param[-1])}

    def adopt(self, other: 'Hybrid', keys_set: Any) -> None:
        """Take over the keys and tables of a store that was given up; all will be initialised anew.

        Parameters
        ----------
        other : Hybrid
        keys_set : set
            Keys whose values were set; the others' tables keep their rows, but not their optimizer state.
        """
        self._id, self._prefix, self._routes = other._id, other._prefix, other._routes
        self._reinitialise = {key: key in keys_set for key in self._routes}
        self._reported = other._reported

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true on any worker (collective)."""
        return flag if self._local is not None else self._collective.any(flag, self._prefix + '.any')

    def sum_flags(self, flags: List[bool]) -> Any:
        """How many workers have each flag set, as an array that is filled later (collective)."""
        if self._flags is None or len(self._flags) != len(flags):
            self._flags = mx.nd.zeros(len(flags))
        # One array for all calls: Horovod refuses a name that is still in flight, the engine makes it wait.
        self._flags[:] = np.array(flags, np.float32)
        self._collective.allreduce_(self._flags, self._prefix + '.flags')
        return self._flags

    def read_for_all(self, fname: str) -> bytes:
        """Contents of a file on worker 0, given to all workers (collective)."""
        self._job.lifeline.count_call()
        data = states.read_on_root(fname, self._collective, self._prefix + '.file')
        return states.broadcast_bytes(data, self._collective, self._prefix + '.file')

    def _barrier(self) -> None:
        if self._local is None:
            self._collective.any(False, self._prefix + '.barrier')

    def _maybe_report(self) -> None:
        if not self._reported and self._routes and self._first_steps_done():
            self._reported = True
            if self.rank == 0:
                logger.info('plan:\n%s', self.report())

    def _first_steps_done(self) -> bool:
        return max(route.traffic.steps for route in self._routes.values()) > PRINT_AFTER_STEPS




def _describe(param: Optional[List[Any]]) -> str:
    return 'no such parameter' if param is None else 'key %r: %s' % (param[0], ' '.join(map(str, param[1:])))
