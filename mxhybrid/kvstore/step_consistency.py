"""Checks that the workers of a Trainer make the same step, by one small allreduce, for which workers rarely wait.

==============================  =====================================================================================
in the sum                      reason
==============================  =====================================================================================
fresh gradients,                a stale gradient counts as zeros if another worker has a fresh one; if no worker has
``ignore_stale_grad``           one, the parameter is left out if the step says so
a gradient overflows            AMP's loss scaler, if the store updates: all workers make the step, or none
parameters with new values      after ``set_data``, ``load_parameters`` and ``initialize(force_reinit=True)`` the values
                                of worker 0 count, as at the start
batch size, learning rate, wd,  gradients are summed, so all workers have to update with the same numbers
momentum and others
calls of split networks         a worker that makes a call alone would send messages that other workers take for
                                messages of their next call
whether a worker has joined     it makes the steps of the others with zeros, and takes their batch size; if all have
                                joined, no worker makes the step (:mod:`mxhybrid.kvstore.joining`)
==============================  =====================================================================================

The sum of a step is read when the next step begins, which has to wait for it anyway, or before something is saved.  A
worker reads it at once if it has something to report: another batch size, new values, a stale gradient that the store
would apply.  The worker then knows whether all other workers do the same.
"""
import contextlib
import copy
import threading
import zlib
from typing import Any, Callable, Iterator, List, Optional, Sequence, Set

import mxnet as mx
import numpy as np

from ..base.errors import InputError
from ..comm.float16 import exceeds
from ..native import trainers
from ..native.arrays import is_same, row_sparse_parts
from .first_values import digest_of
from .trainer_tables import TrainerTables
from .weight_shards import NETWORK_CALL, shard_of

#: Numbers that must be the same on all workers, each with the remedy for the user if they differ.
_NUMBERS = (('batch size', 'step() and update() divide the sum of all workers by it: give the size of the joint batch '
             'on every worker'),
            ('learning rate', 'make the same set_learning_rate, or have the same schedule, on every worker'),
            ('weight decay', 'set the same one on every worker'),
            ('number of calls of networks that are split', 'call them equally often on every worker, also to evaluate '
             'them'),
            ("parameters' lr_mult or wd_mult, by a checksum", 'set the same ones on every worker'),
            ('dynamic tables that are frozen or were initialised again, by a checksum', 'set grad_req, and call '
             'initialize(force_reinit=True), on every worker'))

#: Further numbers: attributes of MXNet's optimizers.
_SETTINGS = ('momentum', 'clip_gradient', 'beta1', 'beta2', 'epsilon', 'float_stable_eps', 'gamma1', 'gamma2', 'rho',
             'lamda1', 'beta')

#: The ways in which a worker makes a step, the last number of each worker: by step(), with zeros after join(), by
#: allreduce_grads() and update().
_BY_STEP, _JOINED, _BY_HAND = 0, 1, 2

_COMPARED = _NUMBERS + tuple((name, 'give the optimizers of all workers the same') for name in _SETTINGS)


class AllJoined(Exception):
    """All workers have joined: no worker makes this step."""


class StepConsistency:
    """The check of one Trainer with a hybrid store."""

    def __init__(self, trainer: Any, tables: TrainerTables):
        self._trainer, self._tables = trainer, tables
        #: Names of parameters that got new values on this worker since the last step.
        self.new_values: Set[str] = set()
        #: Batch size by which the last sum of gradients was divided, which the next step compares; 0 at first.
        self.batch_size = 0.0
        # Whether this worker has joined.
        self._has_joined = False
        # The function that waits for the sum of the last step, and the sum once it was read.
        self._sum: Optional[Callable[[], np.ndarray]] = None
        # Another thread may save parameters while the next step begins and overwrites the sum.
        self._lock = threading.Lock()
        self._values: Optional[np.ndarray] = None
        # The batch size of the last step, and whether it differed from the one before.
        self._last_batch_size, self._changed = 0.0, False
        self._ever_fresh: Set[int] = set()
        # Multipliers of parameters, which rarely change, and the checksum that follows from them.
        self._multipliers: List[float] = []
        self._checksum = 0.0

    @property
    def _store(self) -> Any:
        return trainers.store_of(self._trainer)

    @property
    def _params(self) -> List[Any]:
        return trainers.params_of(self._trainer)

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        """Make steps with zeros as gradients inside of the block; `begin` raises AllJoined when all workers do so."""
        self._has_joined = True
        try:
            yield
        finally:
            self._has_joined = False

    def begin(self, batch_size: Optional[float], ignore_stale: bool,
              fresh_keys: Optional[Sequence[int]] = None) -> Optional[Set[int]]:
        """Return the keys that no worker exchanges in this step, None if a gradient overflows and no worker makes the
        step (collective; before gradients are exchanged).

        `batch_size` is None if it is given later, to ``update()``; then the next step compares it.  `ignore_stale` says
        whether the step leaves stale gradients out, `fresh_keys` has the keys of all parameters that are not frozen if
        all their gradients are known to be fresh.  Raises InputError on all workers if they differed in the last step.
        """
        self.check_last_step()
        self._check_new_values()
        on_store = trainers.updates_on_store(self._trainer)
        scaled = on_store and trainers.loss_scaler_of(self._trainer) is not None
        overflows = scaled and (any_overflows(self._params, self._store.backend.largest_gradient)
                                or self._tables.overflow())
        stale: List[int] = []
        if fresh_keys is not None:
            self._ever_fresh.update(fresh_keys)
        else:
            stale = self._zero_stale(all_devices=not on_store or self._has_joined)
            fresh_keys = [key for key, _ in trainers.trained_params(self._trainer) if key not in stale]
        if batch_size is not None and not self._has_joined:
            self.batch_size = float(batch_size)
        mode = _JOINED if self._has_joined else _BY_HAND if batch_size is None else _BY_STEP
        self._send(fresh_keys, overflows, ignore_stale, mode)
        if self._has_joined:
            self._take_batch_size()
        changed = self.batch_size != self._last_batch_size
        if self._tables.changed():
            self._read()
            self._check()
        if changed and not self._changed or self.new_values:
            self._read()  # batch sizes that vary all the time are compared a step later, so that no worker waits
        self._last_batch_size, self._changed = self.batch_size, changed
        if self.new_values:
            self._broadcast_new_values()
        if scaled and self._read()[2 * len(self._params)]:
            return None
        return self._keys_to_skip(stale) if on_store else set()

    def before_update(self, ignore_stale: bool) -> None:
        """Prepare the update, after the exchange; InputError if this worker already knows that workers differ."""
        if self._values is not None:
            self._check()
        if trainers.updates_on_store(self._trainer):  # where MXNet's own flags stay set
            for key, param in trainers.trained_params(self._trainer):
                if key in self._ever_fresh:
                    _mark(param, True)
        elif ignore_stale:
            for key, param in trainers.trained_params(self._trainer):
                _mark(param, self._fresh_anywhere(key))

    def after_update(self) -> None:
        """Clear the marks of fresh gradients, if the store updates: the next step has to see which are fresh."""
        if trainers.updates_on_store(self._trainer):
            for _, param in trainers.trained_params(self._trainer):
                trainers.mark_used(trainers.arrays_of(param))

    def check_last_step(self) -> None:
        """Raise InputError if workers differed in the last step (not collective, but waits until all have begun it)."""
        if self._sum is not None:
            self._read()
            self._check()

    def _send(self, fresh_keys: Sequence[int], overflows: bool, ignore_stale: bool, mode: int) -> None:
        params, optimizer, store = self._params, self._trainer.optimizer, self._store
        count, width = len(params), len(_COMPARED) + 1
        report = np.zeros(2 * count + 2 + store.num_workers * width)
        report[list(fresh_keys)] = 1
        if self.new_values:
            report[count:2 * count] = [param.name in self.new_values for param in params]
        first = 2 * count + 2 + store.rank * width
        report[2 * count:2 * count + 2] = overflows, ignore_stale
        report[first:first + width] = [
            self.batch_size, _learning_rate(optimizer), optimizer.wd, store.backend.call_count(NETWORK_CALL),
            self._checksum_of_multipliers(params), self._tables.checksum(),
            *(_setting_number(getattr(optimizer, name, None)) for name in _SETTINGS), mode]
        with self._lock:
            self._values = None
            self._sum = store.backend.allreduce_numbers(report)

    def _checksum_of_multipliers(self, params: List[Any]) -> float:
        multipliers = [value for param in [*params, *self._tables.params] for value in (param.lr_mult, param.wd_mult)]
        if not is_same(multipliers, self._multipliers):
            self._checksum = float(zlib.crc32(np.array(multipliers, np.float64).tobytes()))
            # An array that is a multiplier could change and stay the same object.
            self._multipliers = multipliers if {float, int}.issuperset(map(type, multipliers)) else []
        return self._checksum

    def _read(self) -> np.ndarray:
        with self._lock:
            if self._values is None:
                assert self._sum is not None
                self._values = self._sum()
            return self._values

    def _fresh_anywhere(self, key: int) -> bool:
        return bool(self._read()[key] > 0)

    def _numbers_of_workers(self) -> np.ndarray:
        """Return the numbers to compare, and the mode, of each worker."""
        return self._read()[2 * len(self._params) + 2:].reshape(-1, len(_COMPARED) + 1)

    def _take_batch_size(self) -> None:
        """Divide by the batch size of the workers that have not joined; AllJoined if there are none."""
        numbers = self._numbers_of_workers()
        others = numbers[numbers[:, -1] != _JOINED]
        if not len(others):
            self._sum = self._values = None
            raise AllJoined
        if others[0, -1] == _BY_STEP:
            self.batch_size = float(others[0, 0])
            trainers.divide_by(self._trainer, self.batch_size)

    def _check(self) -> None:
        numbers = self._numbers_of_workers()
        if numbers.tobytes() == numbers[0].tobytes() * len(numbers):
            return
        numbers, modes = numbers[:, :-1].copy(), numbers[:, -1]
        has_joined = modes == _JOINED
        if has_joined.any():
            by_hand = np.flatnonzero(modes == _BY_HAND)
            if len(by_hand):
                self._sum = self._values = None
                raise InputError('join: worker %d has joined, but worker %d calls allreduce_grads() and update(), and '
                                 'what it does between them is not known: call step() on every worker, or give all '
                                 'workers equally many batches' % (np.flatnonzero(has_joined)[0], by_hand[0]))
            numbers[has_joined, 0] = numbers[~has_joined][:1, 0]
        differs = (numbers != numbers[0]) & ~(np.isnan(numbers) & np.isnan(numbers[0]))
        if not differs.any():
            return
        for (quantity, advice), values, is_other in zip(_COMPARED, numbers.T, differs.T):
            differing = np.flatnonzero(is_other)
            if len(differing):
                self._sum = self._values = None
                raise InputError('workers differ in their %s: worker 0 has %s, worker %d has %s; %s'
                                 % (quantity, _number(values[0]), differing[0], _number(values[differing[0]]), advice))

    def _zero_stale(self, all_devices: bool) -> List[int]:
        """Set stale gradients to zeros on each device if another device has a fresh one, or on `all_devices`.

        Returns the keys without a fresh gradient on any device of this worker.
        """
        stale = []
        for key, param in trainers.trained_params(self._trainer):
            flags = [trainers.is_fresh(array) for array in trainers.arrays_of(param)]
            if not any(flags):
                stale.append(key)
            else:
                self._ever_fresh.add(key)
            if all_devices or any(flags):
                for flag, grad in zip(flags, param.list_grad()):
                    if not flag:
                        _zero(grad)
        return stale

    def _keys_to_skip(self, stale: List[int]) -> Set[int]:
        """Return the keys, of those `stale` on this worker, that the store does not update; the same on all workers."""
        all_ignore = bool(stale) and (self._read()[2 * len(self._params) + 1] == self._store.num_workers)
        stale_everywhere = set()
        for key in stale:
            if not self._fresh_anywhere(key):
                stale_everywhere.add(key)
            else:
                self._ever_fresh.add(key)
                for grad in self._params[key].list_grad():
                    _zero(grad)
        # Otherwise they are applied again, as on MXNet's own stores.
        return stale_everywhere if all_ignore else set()

    def _broadcast_new_values(self) -> None:
        """Overwrite parameters that got new values on all workers by worker 0's (collective: all have the counts)."""
        counts = self._new_value_counts()
        for param, count in zip(self._params, counts):
            if count == self._store.num_workers and shard_of(param) is None:
                first, *others = [array.as_nd_ndarray() for array in trainers.arrays_of(param)]
                self._store.backend.broadcast(first, 'new values')
                for array in others:
                    first.copyto(array)
        self.new_values.clear()

    def _check_new_values(self) -> None:
        """Raise InputError for values that were set on some workers only and differ from those of other workers."""
        if self._sum is None or not self._new_value_counts().any():
            return
        params = [param for param, count in zip(self._params, self._new_value_counts())
                  if 0 < count < self._store.num_workers and param.grad_req != 'null' and shard_of(param) is None]
        if not params:
            return
        everyone = self._store.backend.allgather_json(
            [digest_of(param) for param in params], 'new_values')
        for param, *digests in zip(params, *everyone):
            differing = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
            if differing:
                raise InputError('%s got new values on some workers only, and worker %d now has other values than '
                                 'worker 0: call set_data, load_parameters or initialize on every worker'
                                 % (param.name, differing[0]))

    def _new_value_counts(self) -> np.ndarray:
        count = len(self._params)
        return self._read()[count:2 * count]


def _mark(param: Any, fresh: bool) -> None:
    for array in trainers.arrays_of(param):
        trainers.set_fresh(array, fresh)


def _zero(array: Any) -> None:
    classic = array.as_nd_ndarray()
    mx.nd.zeros_like(classic, out=classic)


def _setting_number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float, np.number)) else float('nan')


def _learning_rate(optimizer: Any) -> float:
    """Return the learning rate before multipliers.

    A call of MXNet's schedules changes their state, and a script that logs ``trainer.learning_rate`` calls them.
    Therefore every worker calls a copy here.  A schedule of the user's may count its calls, so it is not called.
    """
    schedule = optimizer.lr_scheduler
    if schedule is None:
        return float(optimizer.lr)
    if type(schedule).__module__ == mx.lr_scheduler.__name__:
        return float(copy.copy(schedule)(optimizer.num_update))
    return float(getattr(schedule, 'base_lr', 0.0))


def _number(value: float) -> str:
    return '%d' % value if value == np.floor(value) and abs(value) < 1e15 else repr(float(value))


def any_overflows(params: List[Any], largest: float) -> bool:
    """Return whether any gradient of this worker is not finite, or could exceed `largest` in the sum of its devices."""
    gradients = [grad for param in params for grad in trainers.gradients_of(param)]
    dense = [grad.as_nd_ndarray() for grad in gradients if grad.stype == 'default']
    sparse = [grad for grad in gradients if grad.stype != 'default']
    if any(not np.isfinite(row_sparse_parts(grad)[1]).all() for grad in sparse):
        return True
    if any(not bool(mx.nd.multi_all_finite(grad, num_arrays=1).asscalar()) for grad in dense):
        return True
    return np.isfinite(largest) and any(exceeds(grad, largest / len(trainers.gradients_of(param))) for param in params
                                        for grad in trainers.gradients_of(param))
