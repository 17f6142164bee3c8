"""A step of a Trainer with a hybrid store: its phases, in the same order on every worker.

==================================  ==================================================================================
``Trainer(...)``                    :meth:`TrainerHooks.after_init`: all workers get worker 0's values
                                    (:mod:`mxhybrid.kvstore.first_values`)

``Trainer.step(batch_size)``        :meth:`TrainerHooks.step`: all workers must give the same batch size

``Trainer._allreduce_grads()``      :meth:`TrainerHooks.allreduce_grads`:

                                    1. workers compare the step that they make
                                       (:mod:`mxhybrid.kvstore.step_consistency`); if the store updates, a gradient
                                       that overflows ends the step here, on all workers
                                    2. dense gradients are sent, each as soon as backward has computed it
                                    3. weights of embeddings move to the servers or back
                                       (:mod:`mxhybrid.kvstore.on_demand_switch`)
                                    4. row_sparse gradients are sent; sums, or weights that the store has updated, are
                                       received

``Trainer._update()``               :meth:`TrainerHooks.update`:

                                    5. a worker that knows by now that workers differ raises an error
                                    6. this worker updates, by compiled kernels or MXNet
                                       (:mod:`mxhybrid.kvstore.compiled_updates`); servers get the gradients of the
                                       weights that they hold
                                    7. the gradients of dynamic tables are sent
                                       (:mod:`mxhybrid.kvstore.trainer_tables`)
                                    8. after the first update the worker frees the memory of tables on servers
==================================  ==================================================================================

A script may call the two parts itself, as ``allreduce_grads()`` and ``update()``.  Between steps a Trainer may get a
new store, which takes over from the former one, and read or write the state of its optimizer.

:mod:`mxhybrid.kvstore.hooks` puts the methods of this class in the place of MXNet's; `original` is MXNet's own method.
"""
import contextlib
import tempfile
from types import SimpleNamespace
from typing import Any, Callable, ContextManager, List, Optional, Set, Tuple

import mxnet as mx
import numpy as np

from ..base.errors import InputError
from ..base.log import get_logger
from ..job.join import member
from ..native import trainers
from ..native.optimizer_state import count_update
from ..native.optimizers import depends_on_order
from ..native.trainers import arrays_of, device_kinds, loss_scaler_of, start, trained_params
from . import states_file
from .compiled_updates import CompiledUpdates
from .first_values import FirstValues, compare_first_values, share_first_values
from .hybrid import Hybrid
from .on_demand_copy import uncounted_reads
from .on_demand_switch import OnDemandSwitch
from .sharded_updates import ShardedUpdates, sharding_for
from .step_arrays import Gradients, StepArrays, step_arrays
from .step_consistency import StepConsistency, any_overflows
from .trainer_tables import TrainerTables, table_hints
from .weight_shards import (
    agreed,
    check_optimizer,
    refuse_shards,
    shard_of,
    shards_line,
    unsharded,
    updating_eagerly,
    without_placeholders,
)

logger = get_logger(__name__)

_ATTRIBUTE = '_mxhybrid_hooks'

_EXCHANGE_FIRST = ('Call trainer.allreduce_grads() before trainer.update(batch_size), or trainer.step(batch_size), '
                   'which does both')


class TrainerHooks:
    """The hooks of one Trainer: its steps, its stores, their comparison, and the place of embeddings' weights."""

    def __init__(self, trainer: Any):
        self._trainer = trainer
        #: The dynamic tables.
        self.tables = TrainerTables(trainer)
        self.consistency = StepConsistency(trainer, self.tables)
        #: Moves weights of embeddings to the servers; None if there are none that may move.
        self.switch: Optional[OnDemandSwitch] = None
        # Batch size and ignore_stale_grad of the call of step() that is under way.
        self._call: Optional[Tuple[float, bool]] = None
        # Since the last update: whether gradients were exchanged, and whether a gradient overflowed instead.
        self._exchanged = self._overflow = False
        # Whether a warning has named an update without an exchange.
        self._warned = False
        # Whether there are sharded weights.
        self._has_shards = False
        # Whether the worker's arrays still have the memory of whole tables.
        self._holds_tables = False
        self._compiled_updates = CompiledUpdates()
        # The arrays of the last step, and whether backward has computed all gradients of the step that is under way.
        self._arrays: Optional[StepArrays] = None
        self._all_fresh = False
        #: The sharded updates, if the store asks for them.
        self.sharding: Optional[ShardedUpdates] = None
        # The former store, from which the next one takes over, and names of parameters that got new values since.
        self._former: Optional[Hybrid] = None
        self._new_values: Set[str] = set()
        #: Parameters that do not have worker 0's values yet.
        self.first_values: Optional[FirstValues] = None

    def __reduce__(self) -> Tuple[Any, ...]:
        return TrainerHooks, (self._trainer,)  # a copy of a Trainer has hooks of its own

    # -- before the first step -----------------------------------------------------------------------------------

    def after_init(self) -> None:
        """Join the job after the Trainer was made, and give all workers worker 0's values (collective)."""
        job = member()
        self.tables.register()
        if job.distributed:
            with uncounted_reads(self._trainer):
                self.first_values = share_first_values(self._trainer, job, self.tables)

    # -- a step ------------------------------------------------------------------------------------------------

    def step(self, original: Callable[..., Any], batch_size: Any, ignore_stale_grad: bool = False) -> Any:
        """Surround ``Trainer.step``, which makes the two calls below."""
        self._call = batch_size, ignore_stale_grad
        try:
            return original(batch_size, ignore_stale_grad)
        finally:
            self._call, self._all_fresh = None, False
            self._compiled_updates.write_sums()  # of a step that ends with an error

    def allreduce_grads(self, original: Callable[[], None]) -> None:
        """Replace ``Trainer._allreduce_grads`` (collective)."""
        store = self._trainer._kvstore
        if store is None:
            return
        if self.first_values is not None:
            for param in self._trainer._params:  # which other workers may have read already
                self.first_values.share(param)
            if not self.first_values:
                self.first_values = None
        self.tables.check(self._optimizer)
        with store.meter.allreduce_grads(), uncounted_reads(self._trainer), self._without_placeholders():
            skipped_keys: Optional[Set[int]] = set()
            self._arrays = step_arrays(self._trainer, self._arrays)
            self._all_fresh = self._arrays is not None and trainers.are_fresh(self._arrays.all_weights)
            if self._trainer._update_on_kvstore or store.distributed:
                self._exchanged = True
                batch_size, ignore_stale = self._call or (None, False)
                skipped_keys = self.consistency.begin(
                    batch_size, ignore_stale, self._arrays.keys if self._all_fresh and self._arrays else None)
                self.tables.reopen(store)
            self._overflow = skipped_keys is None
            in_order = self._trainer._update_on_kvstore and depends_on_order(self._optimizer)
            if skipped_keys is not None and not skipped_keys and not in_order and self._arrays is not None:
                self._send(store, self._arrays.gradients)
            elif skipped_keys is not None:
                trained = [pair for pair in trained_params(self._trainer) if pair[0] not in skipped_keys]
                for pairs in [[pair] for pair in trained] if in_order else [trained]:
                    self._send(store, Gradients.of(pairs))

    def _send(self, store: Hybrid, gradients: Gradients) -> None:
        """Make the calls of ``Trainer._allreduce_grads``, first the calls that do not wait for the end of backward.

        A dense gradient is sent as soon as backward has computed it.  The rows of a row_sparse gradient are read here,
        and the gradients of embeddings are computed last.
        """
        on_store = self._trainer._update_on_kvstore
        if self.sharding is not None and gradients.dense:
            summed = self.sharding.sum(gradients.dense,
                                       self._call is None or loss_scaler_of(self._trainer) is not None)
            others = Gradients.of([pair for pair in gradients.dense if pair[0] not in summed])
            gradients = others._replace(sharded=gradients.sharded, sparse=gradients.sparse)
        dense, keys, arrays = gradients.dense, gradients.dense_keys, gradients.dense_arrays
        if len(dense) > 1 and store.distributed and self._is_plain_step:
            # The update takes the sums from their buffers: nobody can look at the gradients before.
            self._compiled_updates.take_sums(store.sum_for_update(keys, arrays, -keys[0]))
        elif dense:
            store.pushpull(list(keys), list(map(list, arrays)),
                           [param.list_data() for _, param in dense] if on_store else None, -keys[0])
        for key, param, shard in gradients.sharded:
            shard.allreduce_(param.grad(), -key)
            if on_store:
                store._updater(key, param.grad(), param.data())
        copies = {}  # of weights on servers
        if self.switch is not None:
            self.switch.before_push(by_hand=self._call is None)  # waits for the other workers
            copies = self.switch.copies
        sparse = gradients.sparse
        if not on_store:  # servers get the gradients of the weights that they hold when the workers update
            sparse = [(key, param) for key, param in sparse if key not in copies]
        for key, param in sparse:
            store.push(key, param.list_grad(), priority=-key)
            if key in copies:
                copies[key].pushed()
        for key, param in sparse:
            if param._stype == 'default' and key not in copies:
                out = param.list_data() if on_store else param.list_grad()
                store.pull(key, out, priority=-key, ignore_sparse=False)

    @property
    def _is_plain_step(self) -> bool:
        """True if only MXNet's code runs between the exchange of gradients and the update in this worker."""
        trainer = self._trainer
        return (self._call is not None and not trainer._update_on_kvstore and loss_scaler_of(trainer) is None
                and trainers.makes_plain_steps(trainer))

    @property
    def _optimizer(self) -> Any:
        """The optimizer that updates; the store may have been given another one than the Trainer's."""
        return trainers.updaters_of(self._trainer)[0].optimizer

    def update_by_hand(self, original: Callable[..., Any], batch_size: Any, ignore_stale_grad: bool = False) -> Any:
        """Surround ``Trainer.update``, which divides by a batch size that all workers must give, and updates."""
        if self._exchanged:
            self.consistency.batch_size = float(batch_size)
        return original(batch_size, ignore_stale_grad)

    def update(self, original: Callable[[bool], None], ignore_stale_grad: bool = False) -> None:
        """Surround ``Trainer._update``."""
        trainer, switch, on_store = self._trainer, self.switch, self._trainer._update_on_kvstore
        if trainer._kvstore is None:
            original(ignore_stale_grad)
            return
        with trainer._kvstore.meter.update(), uncounted_reads(trainer), self._without_placeholders() as elsewhere:
            exchanged, self._exchanged = self._exchanged, False
            overflow, self._overflow = self._overflow, False
            if not exchanged and trainer._kvstore.distributed and not on_store:
                self._note_local_update()
            if exchanged:
                self.consistency.before_update(ignore_stale_grad)
            elif switch is not None and not on_store:
                switch.before_local_update()
            scaler = loss_scaler_of(trainer)
            if scaler is not None and not on_store and (self._has_shards or self.tables):
                # Workers have different gradients, but must come to the same decision.
                overflow, = trainer._kvstore.backend.any_of(
                    [any_overflows(trainer._params, float('inf')) or self.tables.overflow()], 'the loss scaler')
            with contextlib.ExitStack() as around:
                if not on_store:
                    updater = trainer._updaters[0]
                    around.enter_context(self._compiled_updates.updating(trainer))
                    if switch is not None and switch.copies:
                        around.enter_context(switch.updating())
                    if self._has_shards and scaler is None:
                        around.enter_context(updating_eagerly(trainer))
                    if self.sharding is not None:
                        around.enter_context(self.sharding.updating(updater))
                if scaler is not None and (on_store or self._has_shards or self.tables):
                    _update_scaled(scaler, overflow, original, ignore_stale_grad)
                else:
                    self._update_all(original, ignore_stale_grad)
            if switch is not None:
                switch.push_gradients()
            if self.tables:
                if overflow:
                    self.tables.drop_gradients()
                else:
                    self.tables.push(trainer._kvstore, self._optimizer,
                                     () if on_store else trainers.device_numbers(trainer))
            if exchanged and not overflow:
                self.consistency.after_update()
                for key in elsewhere:  # or schedules would differ between workers
                    count_update(trainer.optimizer, key)
            if self._holds_tables and not trainer._params_to_init:
                self._holds_tables = False
                self._arrays = None
                _free_tables(trainer)

    def _without_placeholders(self) -> ContextManager[List[int]]:
        return without_placeholders(self._trainer._params) if self._has_shards else contextlib.nullcontext([])

    def _update_all(self, original: Callable[[bool], None], ignore_stale_grad: bool) -> None:
        """Call ``Trainer._update``, or do the same with arrays that are known."""
        trainer, arrays = self._trainer, self._arrays
        if (self._all_fresh and arrays is not None and arrays.on_one_device and len(trainer._updaters) == 1
                and not ignore_stale_grad and self._is_plain_step and arrays.is_current(trainer)):
            self._all_fresh = False
            trainers.mark_used(arrays.all_weights)
            if arrays.keys:
                trainer._updaters[0](arrays.keys, arrays.all_gradients, arrays.all_weights)
        else:
            original(ignore_stale_grad)

    def _note_local_update(self) -> None:
        """Warn, once, that workers update with their own gradients; InputError if a sharded weight needs a sum."""
        if self.sharding is not None:
            raise InputError('update() was called without allreduce_grads(): with shard_updates=1 each worker updates '
                             'a part of the weights for all workers. %s' % _EXCHANGE_FIRST)
        if self.tables:
            raise InputError('update() was called without allreduce_grads(): the rows of %s are on the servers, which '
                             'sum the gradients of all workers. %s' % (self.tables.params[0].name, _EXCHANGE_FIRST))
        for param in self._trainer._params:
            shard = shard_of(param)
            if shard is not None and len(shard.group) > 1 and param.grad_req != 'null':
                raise InputError('update() was called without allreduce_grads(): %s belongs to a split network, and '
                                 'the %d workers that hold the same shard need the sum of their gradients. %s'
                                 % (param.name, len(shard.group), _EXCHANGE_FIRST))
        if not self._warned:
            self._warned = True
            logger.warning('update() was called without allreduce_grads(): each worker updates with its own gradients, '
                           'so that the weights of the workers drift apart. %s', _EXCHANGE_FIRST)

    def drop_gradients(self) -> None:
        """Forget the gradients of this worker, so that a step takes zeros in their place."""
        self.tables.drop_gradients()
        for _, param in trained_params(self._trainer):
            trainers.mark_used(arrays_of(param))

    # -- its store ---------------------------------------------------------------------------------------------

    def init_kvstore(self, original: Callable[[], None]) -> None:
        """Surround ``Trainer._init_kvstore``: the store learns names, and takes over from a former one (collective)."""
        trainer = self._trainer
        requested_store = trainer._kvstore_params['kvstore']
        if isinstance(requested_store, Hybrid):
            requested_store.serve_trainer(trainer)
        self._has_shards = len(unsharded(trainer._params)) < len(trainer._params)
        if self._has_shards:
            check_optimizer(trainer.optimizer)
            trainer._params_to_init = unsharded(trainer._params_to_init)
        with uncounted_reads(trainer):
            if self.first_values:
                for param in trainer._params:
                    self.first_values.share(param)
            if self._former is None and member().distributed:
                compare_first_values(trainer, member())
            original()
        store = trainer._kvstore
        self.tables.check(self._optimizer)
        former, self._former = self._former, None
        if former is not None:
            with mx.autograd.pause():
                _carry_over(trainer, former, store, {trainer._param2idx[name] for name in self._new_values})
        store.attach({key: [param.name, str(np.dtype(param.dtype)), param._stype, param._grad_stype,
                            'on ' + device_kinds(trainer)] + agreed(param)
                      for key, param in enumerate(trainer._params)},
                     bool(trainer._update_on_kvstore), shards_line(trainer._params),
                     table_hints(trainer._params))
        self._holds_tables = store.distributed
        self.tables.open(store)
        self.sharding = sharding_for(trainer)
        store.show_tables(self)
        self.switch = (OnDemandSwitch(trainer) if store.backend.serves_dense_weights and trainer._contains_sparse_grad
                       else None)

    def reset_kvstore(self) -> None:
        """Keep the store as the former one, before ``Trainer._reset_kvstore``."""
        if self.switch is not None:
            self.switch.abandon()
        self._former, self._new_values = self._trainer._kvstore, set()

    def note_new_values(self, param: Any) -> None:
        """Note that a parameter got new values: from the next step on worker 0's count for all workers."""
        trainer = self._trainer
        if trainer._kv_initialized and param not in trainer._params_to_init:
            if trainer._update_on_kvstore:
                trainer._reset_kvstore()  # as MXNet's set_data does; its initialize leaves the store as it is
            elif trainer._kvstore.distributed and shard_of(param) is None:
                self.consistency.new_values.add(param.name)
        if self._former is not None:
            self._new_values.add(param.name)

    def row_sparse_pull(self, original: Callable[..., None], parameter: Any, out: Any, row_id: Any,
                        full_idx: bool = False) -> None:
        """Surround ``Trainer._row_sparse_pull``.

        Saving and evaluation must not need the other workers before the store is made, or is made again.
        """
        trainer = self._trainer
        if not full_idx and mx.autograd.is_recording():
            original(parameter, out, row_id, full_idx)
        elif trainer._kv_initialized:
            with trainer._kvstore.backend.fresh_pulls():  # evaluation gets rows without staleness
                original(parameter, out, row_id, full_idx)
        elif self._former is not None and parameter.name not in self._new_values:
            key = trainer._param2idx[parameter.name]
            if full_idx:
                self._former.pull(key, out, ignore_sparse=False)
            else:
                self._former.row_sparse_pull(key, out, -key, row_id)
        elif full_idx:
            arrays_of(parameter)[0].copyto(out)
        # Otherwise `out` is the parameter's own array, which has all rows.

    # -- state of its optimizer in files ---------------------------------------------------------------------------

    def move_weights_to_workers(self) -> None:
        """Take all weights of embeddings back from servers (collective); they may move there again after some steps."""
        if self.switch is not None:
            with uncounted_reads(self._trainer):
                for key in list(self.switch.copies):
                    self.switch.take_back(key)

    def _keeps_state(self) -> bool:
        """Return whether the optimizer state is in several workers, the same in all of them."""
        return self._trainer._kvstore.distributed and not self._trainer._update_on_kvstore

    def save_states(self, original: Callable[[str], None], fname: str) -> None:
        """Replace ``Trainer.save_states``: worker 0 writes one file, instead of all workers at the same time."""
        trainer = self._trainer
        self.tables.refuse_states('save_states')
        refuse_shards(trainer._params, 'save_states')
        start(trainer)
        self.consistency.check_last_step()
        if not self._keeps_state():
            original(fname)
            return
        sharded_states = {} if self.sharding is None else self.sharding.whole_states()
        if trainer._kvstore.rank == 0:
            states_file.save(fname, trainer._updaters[0], trainer._kvstore.backend.on_demand_routes(),
                             dump_optimizer=True, sharded_states=sharded_states)

    def release_arrays(self) -> None:
        """Release arrays of earlier updates, before a state is loaded."""
        self._arrays = None
        self._compiled_updates.release_arrays()

    def load_states(self, original: Callable[[str], None], fname: str) -> None:
        """Surround ``Trainer.load_states``: every worker gets the contents of worker 0's file (collective)."""
        self.tables.refuse_states('load_states')
        refuse_shards(self._trainer._params, 'load_states')
        start(self._trainer)
        self.move_weights_to_workers()
        self.release_arrays()
        if not self._keeps_state():
            original(fname)
            return
        with tempfile.NamedTemporaryFile(prefix='mxhybrid-states-') as copy:
            copy.write(self._trainer._kvstore.backend.read_for_all(fname))
            copy.flush()
            original(copy.name)
        if self.sharding is not None:
            self.sharding.note_whole_states(range(len(self._trainer._params)))


def is_hybrid(kvstore: Any) -> bool:
    """Return whether the store that a Trainer was given is a hybrid store, or the name of one."""
    return isinstance(kvstore, Hybrid) or isinstance(kvstore, str) and kvstore.lower() == 'hybrid'


def hooks_of(trainer: Any) -> Optional[TrainerHooks]:
    """Return the hooks of a Trainer that has, or will have, a hybrid store; None for another Trainer, and for None."""
    if trainer is None:
        return None
    trainer_hooks = trainer.__dict__.get(_ATTRIBUTE)
    # A Trainer that could not be made has no such attribute, but its parameters know the Trainer.
    if trainer_hooks is None and is_hybrid(getattr(trainer, '_kvstore_params', {}).get('kvstore')):
        trainer_hooks = trainer.__dict__[_ATTRIBUTE] = TrainerHooks(trainer)
    return trainer_hooks


def share_value_read(param: Any) -> None:
    """Give this worker worker 0's value of a Trainer's parameter that a recorded forward pass reads."""
    trainer_hooks = param._trainer.__dict__.get(_ATTRIBUTE)
    if trainer_hooks is not None and trainer_hooks.first_values and mx.autograd.is_recording():
        trainer_hooks.first_values.share(param)


def _carry_over(trainer: Any, former: Hybrid, store: Hybrid, changed: Set[int]) -> None:
    """Carry over the rows of tables without new values; in one process only the former store has them."""
    if not store.distributed:
        for key, param in enumerate(trainer._params):
            if param._stype != 'default' and key not in changed and not param._deferred_init:
                rows = mx.nd.sparse.zeros('row_sparse', param.shape, dtype=param.dtype, ctx=mx.cpu())
                former.pull(key, rows, ignore_sparse=False)
                for array in arrays_of(param):
                    rows.copyto(array)
    store.adopt(former, changed)  # the former store may be the same object


def _update_scaled(scaler: Any, overflow: bool, original: Callable[[bool], None], ignore_stale_grad: bool) -> None:
    """Make the loss scaler report the workers' common `overflow` in MXNet's update, not that of this worker."""
    # MXNet's LossScaler adapts its scale to this gradient, as to those of the parameters.
    stand_in = SimpleNamespace(_grad=[mx.nd.array([float('nan') if overflow else 0.0], ctx=mx.cpu())])
    scaler.has_overflow = lambda _: type(scaler).has_overflow(scaler, [stand_in])
    try:
        original(ignore_stale_grad)
    finally:
        del scaler.has_overflow


def _free_tables(trainer: Any) -> None:
    """Replace arrays that still have the memory of a whole table: MXNet's arrays grow, but never shrink."""
    for param in trainer._params:
        if param._stype == 'default':
            continue
        fresh = [array._fresh_grad for array in param._data]
        param._data = [mx.nd.sparse.zeros('row_sparse', param.shape, ctx=array.context, dtype=param.dtype)
                       for array in param._data]
        if param._grad is not None:
            mx.autograd.mark_variables(param._data, param._grad, param.grad_req)
            for array, flag in zip(param._data, fresh):
                array._fresh_grad = flag
