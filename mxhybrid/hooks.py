"""Where mxhybrid reaches into MXNet 1.9.1; each hook acts for stores of ours only.

================================  ============================================================================
hooked                            why
================================  ============================================================================
``model._create_kvstore``         with one device, any name without 'dist' silently becomes no store at all
``Trainer._init_kvstore``         parameter names, for messages, the report and partition patterns
``Trainer._reset_kvstore``,       new weights in the middle of training: MXNet makes a new store and fills it
``Parameter.set_data``            from the worker, which holds only some rows of a table
``Trainer._row_sparse_pull``      before the first step a parameter can be saved from what the worker holds
``Trainer._allreduce_grads``,     overflow (AMP) and freshness of gradients must be judged by all workers
``Trainer._update``               together, and before a push updates weights on servers; where a step begins and
                                  ends; after the first one the worker lets go of tables that servers hold
``Trainer.step``                  who exchanges gradients by hand wants their sums
``nn.Embedding.forward``          which rows of a weight on the servers are needed (:mod:`mxhybrid.own_rows`)
``Parameter.data``, ``grad``,     who else reads value or gradient
``list_data``, ``list_grad``
``Parameter.list_ctx``,           not these, which look at the arrays, but not into them
``Parameter._load_init``,
``ParameterDict.zero_grad``
``Parameter._reduce``             what is saved: whole weights that servers hold, tables with their own dtype
``Trainer.save_states``,          one file on worker 0, not one racing another on every worker
``Trainer.load_states``
``sys.excepthook``                a worker whose script fails ends the job
================================  ============================================================================
"""
import contextlib
import functools
import os
import re
import sys
import tempfile
from typing import Any, Callable, Dict, List

import mxnet as mx
import numpy as np
from mxnet.gluon import Trainer, nn
from mxnet.gluon.parameter import Parameter, ParameterDict

from . import job, own_rows, states, switching
from .arrays import row_sparse_parts
from .distributed import Distributed
from .store import Hybrid
from .wire import exceeds

#: Modules that imported MXNet's ``_create_kvstore`` by name.
_CREATE_KVSTORE_USERS = ('mxnet.model', 'mxnet.gluon.trainer', 'mxnet.module.module')


def _wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)
    if not getattr(original, '_mxhybrid', False):
        replacement: Any = functools.wraps(original)(make(original))
        replacement._mxhybrid = True
        setattr(owner, name, replacement)


def install() -> None:
    """Install all hooks, once."""
    for module in _CREATE_KVSTORE_USERS:
        _wrap(sys.modules[module], '_create_kvstore', _create_kvstore)
    for name, make in (('_init_kvstore', _init_kvstore), ('_reset_kvstore', _reset_kvstore),
                       ('_row_sparse_pull', _row_sparse_pull),
                       ('_allreduce_grads', _metered(_allreduce_grads, 'exchange')),
                       ('_update', _metered(_update, 'update')),
                       ('step', _step), ('save_states', _save_states), ('load_states', _load_states)):
        _wrap(Trainer, name, make)
    for name, make in (('set_data', _set_data), ('data', _value_read), ('list_data', _value_read),
                       ('grad', _around(own_rows.gradient)), ('list_grad', _around(own_rows.gradient)),
                       ('list_ctx', _around(own_rows.unread)), ('_load_init', _around(own_rows.unread)),
                       ('_reduce', _reduce)):
        _wrap(Parameter, name, make)
    _wrap(ParameterDict, 'zero_grad', _zero_grad)
    _wrap(nn.Embedding, 'forward', _embedding_forward)
    _wrap(sys, 'excepthook', _excepthook)


def _create_kvstore(original: Any) -> Any:
    def create(kvstore: Any, num_device: int, arg_params: Any) -> Any:
        if isinstance(kvstore, str) and kvstore.lower() == 'hybrid':
            kvstore = mx.kv.create(kvstore)
        if not isinstance(kvstore, Hybrid):
            return original(kvstore, num_device, arg_params)
        # Updating in the worker is cheaper and leaves every feature of the Trainer; MXNet asks for an update on
        # the store by itself where the weights live there.
        return kvstore, bool(int(os.environ.get('MXNET_UPDATE_ON_KVSTORE', '0')))
    return create


def _init_kvstore(original: Any) -> Any:
    def init(self: Any) -> None:
        with own_rows.quiet(self):
            original(self)
        store = self._kvstore
        if not isinstance(store, Hybrid):
            return
        previous = self.__dict__.pop('_mxhybrid_previous', None)
        if previous is not None:
            changed = {self._param2idx[name] for name in self.__dict__.pop('_mxhybrid_set')}
            with mx.autograd.pause():
                _carry_over(self, previous, store, changed)
        store.attach({index: [param.name, str(np.dtype(param.dtype)), param._stype, param._grad_stype, param.grad_req,
                              list(param.shape or ())] for index, param in enumerate(self._params)},
                     bool(self._update_on_kvstore))
        self._mxhybrid_holds_tables = isinstance(store.backend, Distributed)
        switching.attach(self)
    return init


def _carry_over(trainer: Any, previous: Hybrid, store: Hybrid, changed: set) -> None:
    """Keep the rows of tables whose values were not set; in one process they are in the old store only."""
    if not isinstance(store.backend, Distributed):
        for index, param in enumerate(trainer._params):
            if param._stype != 'default' and index not in changed and not param._deferred_init:
                rows = mx.nd.sparse.zeros('row_sparse', param.shape, dtype=param.dtype)
                previous.pull(index, rows, ignore_sparse=False)
                for array in _arrays(param):
                    rows.copyto(array)
    store.adopt(previous, changed)  # which may be the same one


def _reset_kvstore(original: Any) -> Any:
    def reset(self: Any) -> None:
        if self.__dict__.get('_kv_initialized') and isinstance(self._kvstore, Hybrid):
            switch = switching.switch_of(self)
            if switch is not None:
                switch.abandon()
            self._mxhybrid_previous = self._kvstore
            self._mxhybrid_set = set()
        original(self)
    return reset


def _ours(trainer: Any) -> bool:
    """Whether a Trainer has, or will have, a store of ours."""
    store = trainer._kvstore_params['kvstore']
    return isinstance(store, Hybrid) or isinstance(store, str) and store.lower() == 'hybrid'


def _reduce(original: Any) -> Any:
    def reduce(self: Any) -> Any:
        with own_rows.copied(self):
            if self._stype == 'default' or self._trainer is None or not _ours(self._trainer):
                return original(self)
        # MXNet's own copies all rows as float32.
        whole = mx.nd.sparse.zeros('row_sparse', self.shape, ctx=mx.cpu(), dtype=self.dtype)
        everything = mx.nd.arange(self.shape[0], dtype='int64', ctx=mx.cpu())
        self._trainer._row_sparse_pull(self, whole, everything, full_idx=True)
        return whole
    return reduce


def _row_sparse_pull(original: Any) -> Any:
    def pull(self: Any, parameter: Any, out: Any, row_id: Any, full_idx: bool = False) -> None:
        if not (_ours(self) and full_idx) or self._kv_initialized:
            original(self, parameter, out, row_id, full_idx)
            return
        # Saving must not need the other workers: no store yet, or none since new values were set.
        previous = self.__dict__.get('_mxhybrid_previous')
        if previous is None or parameter.name in self._mxhybrid_set:
            _arrays(parameter)[0].copyto(out)
        else:
            previous.pull(self._param2idx[parameter.name], out, ignore_sparse=False)
    return pull


def _set_data(original: Any) -> Any:
    def set_data(self: Any, data: Any) -> None:
        with own_rows.overwritten(self):
            original(self, data)
        waiting = getattr(self._trainer, '_mxhybrid_set', None) if self._trainer else None
        if waiting is not None:
            waiting.add(self.name)
    return set_data


def _value_read(original: Any) -> Any:
    def read(self: Any, *args: Any, **keywords: Any) -> Any:
        own_rows.value_read(self)
        return original(self, *args, **keywords)
    return read


def _around(manager: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A hook that calls a method of a parameter inside of ``manager(parameter)``."""
    def make(original: Any) -> Any:
        def call(self: Any, *args: Any, **keywords: Any) -> Any:
            with manager(self):
                return original(self, *args, **keywords)
        return call
    return make


def _zero_grad(original: Any) -> Any:
    def zero_grad(self: Any) -> None:
        with contextlib.ExitStack() as stack:
            for param in self.values():
                stack.enter_context(own_rows.unread(param))
            original(self)
    return zero_grad


def _embedding_forward(original: Any) -> Any:
    def forward(self: Any, x: Any, *args: Any) -> Any:
        with own_rows.forward(self, x):
            return original(self, x, *args)
    return forward


def _step(original: Any) -> Any:
    def step(self: Any, *args: Any, **keywords: Any) -> Any:
        self._mxhybrid_stepping = True
        try:
            return original(self, *args, **keywords)
        finally:
            self._mxhybrid_stepping = False
    return step


class _Verdict:
    """Stands in for a parameter, so that MXNet's LossScaler draws our conclusion and adapts its scale."""

    def __init__(self, overflow: bool):
        self._grad = [mx.nd.array([float('nan') if overflow else 0.0])]


def _overflows(params: List[Any], largest: float) -> bool:
    """Whether any gradient on any device of this worker is not finite, or above `largest` for all devices."""
    dense = [grad for param in params if param._grad is not None for grad in param._grad if grad.stype == 'default']
    sparse = [grad for param in params if param._grad is not None for grad in param._grad if grad.stype != 'default']
    if any(not np.isfinite(row_sparse_parts(grad)[1]).all() for grad in sparse):
        return True
    if any(not bool(mx.nd.multi_all_finite(grad, num_arrays=1).asscalar()) for grad in dense):
        return True
    return np.isfinite(largest) and any(exceeds(grad, largest / len(param._grad)) for param in params
                                        for grad in param._grad or [])


def _arrays(param: Any) -> List[Any]:
    """A parameter's arrays on all devices, whatever their storage type."""
    return param._check_and_get(param._data, list)


def _trained(trainer: Any) -> List[Any]:
    return [param for param in trainer._params if param.grad_req != 'null']


def _allreduce_grads(original: Any) -> Any:
    def allreduce_grads(self: Any) -> None:
        store = self._kvstore
        if isinstance(store, Hybrid):
            if self._update_on_kvstore and getattr(self, '_amp_loss_scaler', None) is not None:
                self._mxhybrid_overflow = store.backend.any(_overflows(self._params, store.backend.largest_gradient))
                if self._mxhybrid_overflow:
                    return
            if self._update_on_kvstore:
                _silence_stale_gradients(self)
            elif isinstance(store.backend, Distributed):
                self._mxhybrid_fresh = store.backend.sum_flags(_silence_stale_gradients(self))
            _exchange(self, store)
        else:
            original(self)
    return allreduce_grads


def _settle_own_rows(trainer: Any) -> Dict[int, own_rows.Served]:
    """Change over what is to (collective); returns the parameters that servers hold in this step."""
    switch = switching.switch_of(trainer)
    if switch is None:
        return {}
    switch.before_push(by_hand=not trainer.__dict__.get('_mxhybrid_stepping'))
    return switch.served


def _exchange(trainer: Any, store: Hybrid) -> None:
    """Make the calls of ``Trainer._allreduce_grads``, those first that do not wait for the end of backward.

    A dense gradient travels as soon as backward has computed it.  The rows of a row_sparse one are read here, and
    an embedding's are the last to be computed.
    """
    trained = [(key, param) for key, param in enumerate(trainer._params) if param.grad_req != 'null']
    for key, param in trained:
        if param._grad_stype == 'default':
            out = param.list_data() if trainer._update_on_kvstore else None
            store.pushpull(key, param.list_grad(), out=out, priority=-key)
    served = _settle_own_rows(trainer)  # waits for the other workers
    sparse = [(key, param) for key, param in trained if param._grad_stype != 'default']
    if not trainer._update_on_kvstore:  # servers get gradients when the workers update
        sparse = [(key, param) for key, param in sparse if key not in served]
    for key, param in sparse:
        store.push(key, param.list_grad(), priority=-key)
        if key in served:
            served[key].pushed()
    for key, param in sparse:
        if param._stype == 'default' and key not in served:
            out = param.list_data() if trainer._update_on_kvstore else param.list_grad()
            store.pull(key, out, priority=-key, ignore_sparse=False)


def _metered(make: Callable[[Any], Any], part: str) -> Callable[[Any], Any]:
    """The hook that `make` makes, as a part of a step that the store measures."""
    def metered(original: Any) -> Any:
        hooked = make(original)

        def call(self: Any, *args: Any, **keywords: Any) -> Any:
            if not isinstance(self._kvstore, Hybrid):
                return hooked(self, *args, **keywords)
            with getattr(self._kvstore.meter, part)(), own_rows.quiet(self):
                return hooked(self, *args, **keywords)
        return call
    return metered


def _silence_stale_gradients(trainer: Any) -> List[bool]:
    """Have gradients that no backward refreshed count as zeros; returns which parameters have a fresh one."""
    fresh = []
    for param in _trained(trainer):
        flags = [bool(array._fresh_grad) for array in _arrays(param)]
        fresh.append(any(flags))
        for flag, grad in zip(flags, param.list_grad()):
            if not flag:
                mx.nd.zeros_like(grad, out=grad)
    return fresh


def _update(original: Any) -> Any:
    def update(self: Any, ignore_stale_grad: bool = False) -> None:
        if not isinstance(self._kvstore, Hybrid):
            original(self, ignore_stale_grad)
            return
        counts = self.__dict__.pop('_mxhybrid_fresh', None)
        if ignore_stale_grad and counts is not None:
            for param, count in zip(_trained(self), counts.asnumpy()):
                for array in _arrays(param):
                    array._fresh_grad = bool(count)
        overflow = self.__dict__.pop('_mxhybrid_overflow', None)
        switch = switching.switch_of(self)
        if switch is not None and switch.served and not self._update_on_kvstore:
            with switch.updating():
                original(self, ignore_stale_grad)
        elif overflow is None:
            original(self, ignore_stale_grad)
        else:
            scaler = self._amp_loss_scaler
            scaler.has_overflow = lambda _: type(scaler).has_overflow(scaler, [_Verdict(overflow)])
            try:
                original(self, ignore_stale_grad)
            finally:
                del scaler.has_overflow
        if self._mxhybrid_holds_tables and not self._params_to_init:
            self._mxhybrid_holds_tables = False
            _let_go_of_tables(self)
        if ignore_stale_grad and self._update_on_kvstore:
            for param in _trained(self):
                for array in _arrays(param):
                    array._fresh_grad = False
    return update


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


def _start(trainer: Any) -> None:
    if not trainer._kv_initialized:
        trainer._init_kvstore()
    if trainer._params_to_init:
        trainer._init_params()


def _in_workers(trainer: Any) -> bool:
    """Whether the optimizer state of this Trainer lives in several workers, which all have the same."""
    store = trainer._kvstore
    return isinstance(store, Hybrid) and isinstance(store.backend, Distributed) and not trainer._update_on_kvstore


def _save_states(original: Any) -> Any:
    def save_states(self: Any, fname: str) -> None:
        _start(self)
        if not _in_workers(self):
            original(self, fname)
        elif self._kvstore.rank == 0:
            states.save(fname, self._updaters[0], self._kvstore.backend.own_routes(), dump_optimizer=True)
    return save_states


def _load_states(original: Any) -> Any:
    def load_states(self: Any, fname: str) -> None:
        _start(self)
        switch = switching.switch_of(self)
        if switch is not None:
            with own_rows.quiet(self):
                switch.go_back()
        if not _in_workers(self):
            original(self, fname)
            return
        with tempfile.NamedTemporaryFile(prefix='mxhybrid-states-') as copy:
            copy.write(self._kvstore.backend.read_for_all(fname))
            copy.flush()
            original(self, copy.name)
    return load_states


def _gist(text: str) -> str:
    """One line of an error's text: the first, but of a traceback, as in errors of MXNet's native code, the last."""
    lines = text.strip().split('\n')
    return re.sub(r'^(\w+\.)*MXNetError: ', '', lines[-1].strip()) if lines[0].startswith('Traceback') else lines[0]


def _excepthook(original: Any) -> Any:
    """End the whole job when this worker's script ends with an exception."""
    def hook(kind: Any, value: BaseException, traceback: Any) -> None:
        original(kind, value, traceback)
        job.fail_current('%s: %s' % (kind.__name__, _gist(str(value))),
                         echo=isinstance(value, mx.base.MXNetError))
    return hook
