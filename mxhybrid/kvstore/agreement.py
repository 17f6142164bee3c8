"""What the workers of a Trainer tell each other in each step: one small sum, for which mostly nobody waits.

==============================  =====================================================================================
in the sum                      for
==============================  =====================================================================================
which gradients are fresh,      a stale one counts as zeros where another worker has a fresh one; where nobody has,
``ignore_stale_grad``           it is left out if the step says so
a gradient overflows            AMP's loss scaler where the store updates: all make the step, or nobody
parameters given new values     ``set_data``, ``load_parameters``, ``initialize(force_reinit=True)``: worker 0's count,
                                as at the start
batch size, learning rate, wd,  gradients are summed, so all workers have to update with the same numbers
momentum and the like
calls of networks that are      exchanges of a call that one worker makes alone are taken for those of the next one
split
==============================  =====================================================================================

The sum of a step is read when the next one begins, which has to wait for it anyway, or before something is saved.  A
worker reads it at once where it has something to tell: another batch size, new values, a stale gradient that the
store would apply.  Then it knows whether all others do the same.
"""
import copy
import hashlib
import threading
import zlib
from typing import Any, List, Optional, Set

import mxnet as mx
import numpy as np

from ..base.errors import InputError
from ..comm.float16 import exceeds
from ..native import trainers
from ..native.arrays import row_sparse_parts
from .parts import NETWORK_CALL, part_of

#: What workers must have in common, and how they get it.
_NUMBERS = (('batch size', 'step() and update() divide the sum of all workers by it: give the size of the joint batch '
             'on every worker'),
            ('learning rate', 'make the same set_learning_rate, or have the same schedule, on every worker'),
            ('weight decay', 'set the same one on every worker'),
            ('number of calls of networks that are split', 'call them equally often on every worker, also to evaluate '
             'them'),
            ("parameters' lr_mult or wd_mult, by a checksum", 'set the same ones on every worker'))

#: More of them: attributes of MXNet's optimizers.
_SETTINGS = ('momentum', 'clip_gradient', 'beta1', 'beta2', 'epsilon', 'float_stable_eps', 'gamma1', 'gamma2', 'rho',
             'lamda1', 'beta')

_COMPARED = _NUMBERS + tuple((name, 'give the optimizers of all workers the same') for name in _SETTINGS)


class Agreement:
    """Of one Trainer whose store is ours."""

    def __init__(self, trainer: Any):
        self._trainer = trainer
        #: Names of parameters that were given values since the last step.
        self.given: Set[str] = set()
        #: The last one by which a sum of gradients was divided; 0 before the first.
        self.batch_size = 0.0
        # The sum of the last step, filled later, and its values once they were read.
        self._sum: Any = None
        # Parameters may be saved by a thread of their own while the next step begins, which overwrites the sum.
        self._lock = threading.Lock()
        self._values: Optional[np.ndarray] = None
        # Of the last step: the batch size that was told, and whether that was another one than before.
        self._told, self._changed = 0.0, False
        self._ever_fresh: Set[int] = set()

    @property
    def _store(self) -> Any:
        return trainers.store_of(self._trainer)

    @property
    def _params(self) -> List[Any]:
        return trainers.params_of(self._trainer)

    def begin(self, batch_size: Optional[float], ignore_stale: bool) -> Optional[Set[int]]:
        """Before gradients are exchanged (collective): which keys nobody exchanges in this step; None if nobody makes
        it, since a gradient overflows.

        `batch_size` is None if it is given later, to ``update()``; then the next step compares it.  `ignore_stale` says
        whether the step leaves stale gradients out.  InputError on all workers if in the last step they differed in
        what they should have in common.
        """
        self.look_back()
        self._compare_what_some_were_given()
        on_store = trainers.updates_on_store(self._trainer)
        scaled = on_store and trainers.loss_scaler_of(self._trainer) is not None
        overflows = scaled and any_overflows(self._params, self._store.backend.largest_gradient)
        stale = self._silence(whole=not on_store)
        if batch_size is not None:
            self.divide_by(batch_size)
        self._tell(stale, overflows, ignore_stale)
        changed = self.batch_size != self._told
        if changed and not self._changed or self.given:
            self._read()  # batch sizes that vary all the time are compared a step later, so that nobody waits
        self._told, self._changed = self.batch_size, changed
        if self.given:
            self._take_what_all_were_given()
        if scaled and self._read()[2 * len(self._params)]:
            return None
        return self._left_out(stale) if on_store else set()

    def divide_by(self, batch_size: float) -> None:
        """The sums of gradients are divided by it, which the next step compares."""
        self.batch_size = float(batch_size)

    def note_given(self, param: Any) -> None:
        """A parameter was given values in this worker."""
        self.given.add(param.name)

    def before_update(self, ignore_stale: bool) -> None:
        """After the exchange, before workers update; InputError if they differ, and this one knows."""
        if self._values is not None:
            self._judge()
        if trainers.updates_on_store(self._trainer):  # where MXNet's own flags stay up
            for key, param in trainers.trained_params(self._trainer):
                if key in self._ever_fresh:
                    _mark(param, True)
        elif ignore_stale:
            for key, param in trainers.trained_params(self._trainer):
                _mark(param, self._anywhere(key))

    def after_update(self) -> None:
        """Where the store updates, the next step has to see which gradients are fresh."""
        if trainers.updates_on_store(self._trainer):
            for _, param in trainers.trained_params(self._trainer):
                _mark(param, False)

    def look_back(self) -> None:
        """Compare what the workers told in their last step (not collective, but waits until all have begun it)."""
        if self._sum is not None:
            self._read()
            self._judge()

    def _tell(self, stale: List[int], overflows: bool, ignore_stale: bool) -> None:
        params, optimizer = self._params, self._trainer.optimizer
        fresh = np.zeros(len(params))
        fresh[[key for key, _ in trainers.trained_params(self._trainer) if key not in stale]] = 1
        given = [param.name in self.given for param in params]
        numbers = np.zeros((self._store.num_workers, len(_COMPARED)))
        multipliers = np.array([(param.lr_mult, param.wd_mult) for param in params], np.float64)
        numbers[self._store.rank] = [self.batch_size, _learning_rate(optimizer), optimizer.wd,
                                     self._store.backend.times(NETWORK_CALL), zlib.crc32(multipliers.tobytes()),
                                     *(_setting(optimizer, name) for name in _SETTINGS)]
        told = np.concatenate([fresh, given, [overflows, ignore_stale], numbers.ravel()])
        with self._lock:
            self._values = None
            self._sum = self._store.backend.add_up(told)

    def _read(self) -> np.ndarray:
        with self._lock:
            if self._values is None:
                self._values = self._sum.asnumpy()
            return self._values

    def _anywhere(self, key: int) -> bool:
        return bool(self._read()[key] > 0)

    def _judge(self) -> None:
        numbers = self._read()[2 * len(self._params) + 2:].reshape(-1, len(_COMPARED))
        for (what, advice), values in zip(_COMPARED, numbers.T):
            odd = np.flatnonzero((values != values[0]) & ~(np.isnan(values) & np.isnan(values[0])))
            if len(odd):
                self._sum = self._values = None
                raise InputError('workers differ in their %s: worker 0 has %s, worker %d has %s; %s'
                                 % (what, _number(values[0]), odd[0], _number(values[odd[0]]), advice))

    def _silence(self, whole: bool) -> List[int]:
        """Have the gradients of devices that no backward refreshed count as zeros, if another device's was or with
        `whole`; returns the keys of which none was refreshed.
        """
        stale = []
        for key, param in trainers.trained_params(self._trainer):
            flags = [trainers.is_fresh(array) for array in trainers.arrays_of(param)]
            if not any(flags):
                stale.append(key)
            else:
                self._ever_fresh.add(key)
            if whole or any(flags):
                for flag, grad in zip(flags, param.list_grad()):
                    if not flag:
                        _zero(grad)
        return stale

    def _left_out(self, stale: List[int]) -> Set[int]:
        """Which of the keys whose gradients are stale here the store is not to update; the same on all workers."""
        everybody_ignores = bool(stale) and (self._read()[2 * len(self._params) + 1] == self._store.num_workers)
        nobody = set()
        for key in stale:
            if not self._anywhere(key):
                nobody.add(key)
            else:
                self._ever_fresh.add(key)
                for grad in self._params[key].list_grad():
                    _zero(grad)
        # Otherwise they are applied again, as on MXNet's own stores.
        return nobody if everybody_ignores else set()

    def _take_what_all_were_given(self) -> None:
        """Have worker 0's values count (collective: whoever finds something knows that all others do)."""
        counts = self._given_by()
        for param, count in zip(self._params, counts):
            if count == self._store.num_workers and part_of(param) is None:
                first, *others = [array.as_nd_ndarray() for array in trainers.arrays_of(param)]
                self._store.backend.spread(first, 'new values')
                for array in others:
                    first.copyto(array)
        self.given.clear()

    def _compare_what_some_were_given(self) -> None:
        """Values that were set on some workers only are no mistake if they are the same as the others'."""
        if self._sum is None:
            return
        some = [param for param, count in zip(self._params, self._given_by())
                if 0 < count < self._store.num_workers and param.grad_req != 'null' and part_of(param) is None]
        if not some:
            return
        everyone = self._store.backend.exchange([_fingerprint(trainers.arrays_of(param)[0]) for param in some], 'given')
        for param, *found in zip(some, *everyone):
            odd = [rank for rank, digest in enumerate(found) if digest != found[0]]
            if odd:
                raise InputError('%s was given values on some workers only, and worker %d has others than worker 0 '
                                 'now: call set_data, load_parameters or initialize on every worker'
                                 % (param.name, odd[0]))

    def _given_by(self) -> np.ndarray:
        count = len(self._params)
        return self._read()[count:2 * count]


def _mark(param: Any, fresh: bool) -> None:
    for array in trainers.arrays_of(param):
        trainers.set_fresh(array, fresh)


def _zero(array: Any) -> None:
    classic = array.as_nd_ndarray()
    mx.nd.zeros_like(classic, out=classic)


def _setting(optimizer: Any, name: str) -> float:
    value = getattr(optimizer, name, None)
    return float(value) if isinstance(value, (int, float, np.number)) else float('nan')


def _learning_rate(optimizer: Any) -> float:
    """The learning rate before multipliers.

    MXNet's schedules keep what they found when they were last asked, and who logs ``trainer.learning_rate`` asks.  So
    a copy is asked here, on every worker.  Schedules of the user's own may count how often they are asked.
    """
    schedule = optimizer.lr_scheduler
    if schedule is None:
        return float(optimizer.lr)
    if type(schedule).__module__ == mx.lr_scheduler.__name__:
        return float(copy.copy(schedule)(optimizer.num_update))
    return float(getattr(schedule, 'base_lr', 0.0))


def _number(value: float) -> str:
    return '%d' % value if value == np.floor(value) and abs(value) < 1e15 else repr(float(value))


def _fingerprint(array: Any) -> str:
    return hashlib.blake2b(np.ascontiguousarray(array.asnumpy()).data, digest_size=8).hexdigest()


def any_overflows(params: List[Any], largest: float) -> bool:
    """Whether any gradient on any device of this worker is not finite, or above `largest` for all devices."""
    gradients = [grad for param in params for grad in trainers.gradients_of(param)]
    dense = [grad.as_nd_ndarray() for grad in gradients if grad.stype == 'default']
    sparse = [grad for grad in gradients if grad.stype != 'default']
    if any(not np.isfinite(row_sparse_parts(grad)[1]).all() for grad in sparse):
        return True
    if any(not bool(mx.nd.multi_all_finite(grad, num_arrays=1).asscalar()) for grad in dense):
        return True
    return np.isfinite(largest) and any(exceeds(grad, largest / len(trainers.gradients_of(param))) for param in params
                                        for grad in trainers.gradients_of(param))
