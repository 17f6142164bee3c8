"""A step of a Trainer whose store is ours: what happens in which order, on every worker alike.

==================================  ==================================================================================
``Trainer(...)``                    :meth:`Steps.made`: all workers get worker 0's values
                                    (:mod:`mxhybrid.kvstore.first_values`)

``Trainer.step(batch_size)``        :meth:`Steps.step`: all workers must give the same batch size

``Trainer._allreduce_grads()``      :meth:`Steps.exchange`:

                                    1. workers begin to tell each other what they exchange
                                       (:mod:`mxhybrid.kvstore.agreement`); where the store updates, a gradient that
                                       overflows ends the step here, for all of them
                                    2. dense gradients leave, each as soon as backward has computed it
                                    3. weights of embeddings go to the servers, or come back
                                       (:mod:`mxhybrid.kvstore.own_rows_switch`)
                                    4. row_sparse gradients leave; sums, or weights that the store has updated, arrive

``Trainer._update()``               :meth:`Steps.update`:

                                    5. who knows by now that workers differ raises an error
                                    6. MXNet updates in this worker; servers get the gradients of what they hold
                                    7. after the first update the worker lets go of the memory of tables that servers
                                       hold
==================================  ==================================================================================

A script may call the two parts itself, as ``allreduce_grads()`` and ``update()``.  Between steps a Trainer may get a
new store, which takes over from the one before, and read or write the state of its optimizer.

:mod:`mxhybrid.kvstore.hooks` has MXNet's methods pass through here; `original` is what MXNet's own would do.
"""
import contextlib
import tempfile
from typing import Any, Callable, List, Optional, Set, Tuple

import mxnet as mx
import numpy as np

from ..base.errors import InputError
from ..base.log import get_logger
from ..job.join import member
from ..native.optimizer_state import count_update
from ..native.trainers import arrays_of, device_kinds, loss_scaler_of, start, trained_params
from . import states_file
from .agreement import Agreement, any_overflows
from .first_values import FirstValues, compare_first_values, share_first_values
from .hybrid import Hybrid
from .own_rows_copy import uncounted_reads
from .own_rows_switch import OwnRowsSwitch, switch_for
from .part_updates import updating_parts
from .parts import agreed, check_optimizer, held_elsewhere, part_of, parts_line, refuse_parts, whole
from .planned import planned_tables

logger = get_logger(__name__)

_STEPS = '_mxhybrid_steps'

_EXCHANGE_FIRST = ('Call trainer.allreduce_grads() before trainer.update(batch_size), or trainer.step(batch_size), '
                   'which does both')


class Steps:
    """All steps of one Trainer, its store or stores, what workers tell each other, and who holds embeddings' weights.
    """

    def __init__(self, trainer: Any):
        self._trainer = trainer
        self.agreement = Agreement(trainer)
        self.switch: Optional[OwnRowsSwitch] = None
        # Batch size and ignore_stale_grad of the call of step() that is under way.
        self._call: Optional[Tuple[float, bool]] = None
        # Since the last update: whether workers agreed on an exchange, and whether a gradient overflowed instead.
        self._exchanged = self._overflow = False
        # Whether a warning has been given of an update without an exchange.
        self._warned = False
        # Whether there are weights of which this worker holds a part only.
        self._has_parts = False
        # Whether the worker's arrays still have the memory of whole tables.
        self._holds_tables = False
        # The store that was given up, from which the next takes over, and parameters that were given values since.
        self._former: Optional[Hybrid] = None
        self._given: Set[str] = set()
        #: Parameters that do not have worker 0's values yet.
        self.first_values: Optional[FirstValues] = None

    def __reduce__(self) -> Tuple[Any, ...]:
        return Steps, (self._trainer,)  # a copy of a Trainer makes steps of its own

    # -- before the first step -----------------------------------------------------------------------------------

    def made(self) -> None:
        """After the Trainer was made: join the job, and give all workers worker 0's values (collective)."""
        job = member()
        if job.distributed:
            with uncounted_reads(self._trainer):
                self.first_values = share_first_values(self._trainer, job)

    def value_read(self, param: Any) -> None:
        """Before a parameter's value is read: in a forward pass that is recorded it must be worker 0's."""
        if self.first_values and mx.autograd.is_recording():
            self.first_values.share(param)

    # -- a step ------------------------------------------------------------------------------------------------

    def step(self, original: Callable[..., Any], batch_size: Any, ignore_stale_grad: bool = False) -> Any:
        """Around ``Trainer.step``, which makes the two calls below."""
        self._call = batch_size, ignore_stale_grad
        try:
            return original(batch_size, ignore_stale_grad)
        finally:
            self._call = None

    def exchange(self, original: Callable[[], None]) -> None:
        """In place of ``Trainer._allreduce_grads`` (collective)."""
        store = self._trainer._kvstore
        if store is None:
            return
        if self.first_values:
            self.first_values.share_all(self._trainer._params)
        with store.meter.exchange(), uncounted_reads(self._trainer):
            left_out: Optional[Set[int]] = set()
            if self._trainer._update_on_kvstore or store.distributed:
                self._exchanged = True
                left_out = self.agreement.begin(*self._call or (None, False))
            self._overflow = left_out is None
            if left_out is not None:
                self._send(store, [pair for pair in trained_params(self._trainer) if pair[0] not in left_out])

    def _send(self, store: Hybrid, trained: List[Tuple[int, Any]]) -> None:
        """Make the calls of ``Trainer._allreduce_grads``, those first that do not wait for the end of backward.

        A dense gradient travels as soon as backward has computed it.  The rows of a row_sparse one are read here, and
        an embedding's are the last to be computed.
        """
        on_store = self._trainer._update_on_kvstore
        parts = [(key, param, part) for key, param in trained for part in [part_of(param)] if part is not None]
        trained = [(key, param) for key, param in trained if part_of(param) is None]
        dense = [(key, param) for key, param in trained if param._grad_stype == 'default']
        if dense:
            store.pushpull([key for key, _ in dense], [param.list_grad() for _, param in dense],
                           [param.list_data() for _, param in dense] if on_store else None, -dense[0][0])
        for key, param, part in parts:
            part.allreduce_(param.grad(), -key)
            if on_store:
                store._updater(key, param.grad(), param.data())
        held = {}
        if self.switch is not None:
            self.switch.before_push(by_hand=self._call is None)  # waits for the other workers
            held = self.switch.copies
        sparse = [(key, param) for key, param in trained if param._grad_stype != 'default']
        if not on_store:  # servers get the gradients of what they hold when the workers update
            sparse = [(key, param) for key, param in sparse if key not in held]
        for key, param in sparse:
            store.push(key, param.list_grad(), priority=-key)
            if key in held:
                held[key].pushed()
        for key, param in sparse:
            if param._stype == 'default' and key not in held:
                out = param.list_data() if on_store else param.list_grad()
                store.pull(key, out, priority=-key, ignore_sparse=False)

    def update_by_hand(self, original: Callable[..., Any], batch_size: Any, ignore_stale_grad: bool = False) -> Any:
        """Around ``Trainer.update``, which divides by a batch size that all workers must give, and updates."""
        if self._exchanged:
            self.agreement.divide_by(batch_size)
        return original(batch_size, ignore_stale_grad)

    def update(self, original: Callable[[bool], None], ignore_stale_grad: bool = False) -> None:
        """Around ``Trainer._update``."""
        trainer, switch = self._trainer, self.switch
        if trainer._kvstore is None:
            original(ignore_stale_grad)
            return
        with trainer._kvstore.meter.update(), uncounted_reads(trainer):
            exchanged, self._exchanged = self._exchanged, False
            overflow, self._overflow = self._overflow, False
            if not exchanged and trainer._kvstore.distributed and not trainer._update_on_kvstore:
                self._note_local_update()
            if exchanged:
                self.agreement.before_update(ignore_stale_grad)
            elif switch is not None and not trainer._update_on_kvstore:
                switch.before_local_update()
            if loss_scaler_of(trainer) is not None and self._has_parts and not trainer._update_on_kvstore:
                # Workers have other gradients, and must draw one conclusion.
                overflow, = trainer._kvstore.backend.votes([any_overflows(trainer._params, float('inf'))],
                                                           'the loss scaler')
                _update_scaled(loss_scaler_of(trainer), overflow, original, ignore_stale_grad)
            elif trainer._update_on_kvstore and loss_scaler_of(trainer) is not None:
                _update_scaled(loss_scaler_of(trainer), overflow, original, ignore_stale_grad)
            else:
                with contextlib.ExitStack() as around:
                    if switch is not None and switch.copies and not trainer._update_on_kvstore:
                        around.enter_context(switch.updating())
                    if self._has_parts and not trainer._update_on_kvstore:
                        around.enter_context(updating_parts(trainer))
                    original(ignore_stale_grad)
            if exchanged and not overflow:
                self.agreement.after_update()
                for key in held_elsewhere(trainer._params):  # or schedules would go other ways on other workers
                    count_update(trainer.optimizer, key)
            if self._holds_tables and not trainer._params_to_init:
                self._holds_tables = False
                _let_go_of_tables(trainer)

    def _note_local_update(self) -> None:
        """Warn, once, that workers update with gradients of their own; InputError where that cannot be meant."""
        for param in self._trainer._params:
            part = part_of(param)
            if part is not None and len(part.group) > 1 and part.grad_req != 'null':
                raise InputError('update() was called without allreduce_grads(): %s is part of a split network, and '
                                 'the %d workers that hold the same part need the sum of their gradients. %s'
                                 % (param.name, len(part.group), _EXCHANGE_FIRST))
        if not self._warned:
            self._warned = True
            logger.warning('update() was called without allreduce_grads(): each worker updates with its own gradients, '
                           'so that the weights of the workers drift apart. %s', _EXCHANGE_FIRST)

    # -- its store ---------------------------------------------------------------------------------------------

    def make_store(self, original: Callable[[], None]) -> None:
        """Around ``Trainer._init_kvstore``: the store learns names, and takes over what was given up (collective)."""
        trainer = self._trainer
        requested_store = trainer._kvstore_params['kvstore']
        if isinstance(requested_store, Hybrid):
            requested_store.serve_trainer(trainer)
        self._has_parts = len(whole(trainer._params)) < len(trainer._params)
        if self._has_parts:
            check_optimizer(trainer.optimizer)
            trainer._params_to_init = whole(trainer._params_to_init)
        with uncounted_reads(trainer):
            if self.first_values:
                self.first_values.share_all(trainer._params)
            if self._former is None and member().distributed:
                compare_first_values(trainer, member())
            original()
        store = trainer._kvstore
        former, self._former = self._former, None
        if former is not None:
            with mx.autograd.pause():
                _carry_over(trainer, former, store, {trainer._param2idx[name] for name in self._given})
        store.attach({key: [param.name, str(np.dtype(param.dtype)), param._stype, param._grad_stype,
                            'on ' + device_kinds(trainer)] + agreed(param)
                      for key, param in enumerate(trainer._params)},
                     bool(trainer._update_on_kvstore), parts_line(trainer._params),
                     planned_tables(trainer._params))
        self._holds_tables = store.distributed
        self.switch = switch_for(trainer)

    def give_up_store(self) -> None:
        """Before ``Trainer._reset_kvstore``: MXNet will make a new store and fill it from this worker's arrays, which
        have only some rows of a table.
        """
        if self.switch is not None:
            self.switch.abandon()
        self._former, self._given = self._trainer._kvstore, set()

    def given_values(self, param: Any) -> None:
        """A parameter was given values: worker 0's count for all workers from the next step on."""
        trainer = self._trainer
        if trainer._kv_initialized and param not in trainer._params_to_init:
            if trainer._update_on_kvstore:
                trainer._reset_kvstore()  # as MXNet's set_data does; its initialize leaves the store as it is
            elif trainer._kvstore.distributed and part_of(param) is None:
                self.agreement.note_given(param)
        if self._former is not None:
            self._given.add(param.name)

    def pull_rows(self, original: Callable[..., None], parameter: Any, out: Any, row_id: Any, full_idx: bool = False
                  ) -> None:
        """Around ``Trainer._row_sparse_pull``: saving and evaluation must not need the other workers where there is no
        store yet, or none since new values were set.
        """
        trainer = self._trainer
        if trainer._kv_initialized or not full_idx and mx.autograd.is_recording():
            original(parameter, out, row_id, full_idx)
        elif self._former is not None and parameter.name not in self._given:
            key = trainer._param2idx[parameter.name]
            if full_idx:
                self._former.pull(key, out, ignore_sparse=False)
            else:
                self._former.row_sparse_pull(key, out, -key, row_id)
        elif full_idx:
            arrays_of(parameter)[0].copyto(out)
        # Else `out` is the parameter's own array, which has all rows.

    # -- state of its optimizer in files ---------------------------------------------------------------------------

    def take_back_weights(self) -> None:
        """Have no weights of embeddings on servers (collective); they may change over again after a while."""
        if self.switch is not None:
            with uncounted_reads(self._trainer):
                self.switch.go_back()

    def _keeps_state(self) -> bool:
        """Whether the optimizer state is in several workers, which all have the same."""
        return self._trainer._kvstore.distributed and not self._trainer._update_on_kvstore

    def save_states(self, original: Callable[[str], None], fname: str) -> None:
        """In place of ``Trainer.save_states``: one file on worker 0, not one racing another on every worker."""
        trainer = self._trainer
        refuse_parts(trainer._params, 'save_states')
        start(trainer)
        self.agreement.look_back()
        if not self._keeps_state():
            original(fname)
        elif trainer._kvstore.rank == 0:
            states_file.save(fname, trainer._updaters[0], trainer._kvstore.backend.own_routes(), dump_optimizer=True)

    def load_states(self, original: Callable[[str], None], fname: str) -> None:
        """Around ``Trainer.load_states``: every worker reads the file that worker 0 has (collective)."""
        refuse_parts(self._trainer._params, 'load_states')
        start(self._trainer)
        self.take_back_weights()
        if not self._keeps_state():
            original(fname)
            return
        with tempfile.NamedTemporaryFile(prefix='mxhybrid-states-') as copy:
            copy.write(self._trainer._kvstore.backend.read_for_all(fname))
            copy.flush()
            original(copy.name)


def is_ours(kvstore: Any) -> bool:
    """Whether what a Trainer was given is, or names, a store of ours."""
    return isinstance(kvstore, Hybrid) or isinstance(kvstore, str) and kvstore.lower() == 'hybrid'


def steps_of(trainer: Any) -> Optional[Steps]:
    """The steps of a Trainer that has, or will have, a store of ours; None for any other."""
    steps = trainer.__dict__.get(_STEPS)
    # A Trainer that could not be made has none, but its parameters know it.
    if steps is None and is_ours(getattr(trainer, '_kvstore_params', {}).get('kvstore')):
        steps = trainer.__dict__[_STEPS] = Steps(trainer)
    return steps


def share_value_read(param: Any) -> None:
    """Before the value of a parameter is handed out."""
    trainer = param._trainer
    steps = None if trainer is None else trainer.__dict__.get(_STEPS)
    if steps is not None and steps.first_values is not None:
        steps.value_read(param)


def _carry_over(trainer: Any, former: Hybrid, store: Hybrid, changed: Set[int]) -> None:
    """Keep the rows of tables whose values were not set; in one process they are in the former store only."""
    if not store.distributed:
        for key, param in enumerate(trainer._params):
            if param._stype != 'default' and key not in changed and not param._deferred_init:
                rows = mx.nd.sparse.zeros('row_sparse', param.shape, dtype=param.dtype, ctx=mx.cpu())
                former.pull(key, rows, ignore_sparse=False)
                for array in arrays_of(param):
                    rows.copyto(array)
    store.adopt(former, changed)  # which may be the same one


class _OverflowStandIn:
    """Stands in for a parameter, so that MXNet's LossScaler draws our conclusion and adapts its scale."""

    def __init__(self, overflow: bool):
        self._grad = [mx.nd.array([float('nan') if overflow else 0.0], ctx=mx.cpu())]


def _update_scaled(scaler: Any, overflow: bool, original: Callable[[bool], None], ignore_stale_grad: bool) -> None:
    """Have MXNet's update ask the loss scaler about our verdict, and not about the gradients of this worker."""
    scaler.has_overflow = lambda _: type(scaler).has_overflow(scaler, [_OverflowStandIn(overflow)])
    try:
        original(ignore_stale_grad)
    finally:
        del scaler.has_overflow


def _let_go_of_tables(trainer: Any) -> None:
    """Replace arrays that still have the memory of a whole table; MXNet's arrays grow, but never shrink."""
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
