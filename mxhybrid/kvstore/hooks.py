"""Where mxhybrid reaches into MXNet 1.9.1; each hook acts for stores of ours only.

================================  ============================================================================
hooked                            why
================================  ============================================================================
``Trainer.__init__``              workers begin with the values of worker 0; libraries ask for a local store
``trainer._create_kvstore``       with one device, any name without 'dist' silently becomes no store at all
``model._create_kvstore``,        refused: ``mx.mod.Module`` looks for 'dist' in the type of a store before it does
``module._create_kvstore``        what several workers need
``Trainer.step``,                 the batch size, which all workers must give; who exchanges gradients by hand wants
``Trainer.update``                their sums
``Trainer._allreduce_grads``,     what workers must agree on, some of it before a push updates weights on servers;
``Trainer._update``               where a step begins and ends (:mod:`mxhybrid.kvstore.trainer_step`, also for the next)
``Trainer._init_kvstore``         parameter names, for messages, the report and partition patterns
``Trainer._reset_kvstore``,       new weights in the middle of training: MXNet makes a new store and fills it
``Parameter.set_data``,           from the worker, which holds only some rows of a table; where workers update, they
``Parameter.initialize``          may have been given different ones
``Trainer._row_sparse_pull``      before the first step a parameter can be saved and read from what the worker holds
``Trainer.save_states``,          one file on worker 0, not one racing another on every worker
``Trainer.load_states``
``nn.Embedding.forward``          which rows of a weight on servers are needed (:mod:`mxhybrid.kvstore.own_rows_copy`)
``Parameter.data``, ``grad``,     who else reads value or gradient
``list_data``, ``list_grad``
``Parameter.list_ctx``,           not these, which look at the arrays, but not into them
``Parameter._load_init``,
``ParameterDict.zero_grad``
``Parameter._set_trainer``        values that servers hold for another Trainer come home
``Parameter._reduce``             what is saved: whole weights that servers hold, tables with their own dtype; refused,
                                  as is ``_load_init``, for parts of weights
``sys.excepthook``                a worker whose script fails ends the job
================================  ============================================================================
"""
import contextlib
import functools
import os
import re
import sys
from typing import Any, Callable, Dict

import mxnet as mx
from mxnet.gluon import Trainer, nn
from mxnet.gluon.parameter import Parameter, ParameterDict

from ..base.errors import InputError
from ..base.local_sockets import Left
from ..base.machine import remedy
from ..job.join import fail_current
from . import own_rows_copy
from .local_stores import store_for
from .parts import refuse_left, refuse_move, refuse_new_values, refuse_parts
from .trainer_step import Steps, is_ours, share_value_read, steps_of

#: Where ``mx.mod.Module``, ``FeedForward`` and ``SVRGModule`` find ``_create_kvstore``.
_MODULES = ('mxnet.model', 'mxnet.module.module')

#: What does the work of a Trainer's method.
_METHODS: Dict[str, Callable[..., Any]] = {
    'step': Steps.step, '_allreduce_grads': Steps.exchange, '_update': Steps.update, 'update': Steps.update_by_hand,
    '_init_kvstore': Steps.make_store, '_row_sparse_pull': Steps.pull_rows,
    'save_states': Steps.save_states, 'load_states': Steps.load_states}


def install() -> None:
    """Install all hooks, once."""
    _wrap(sys.modules['mxnet.gluon.trainer'], '_create_kvstore', _create_kvstore)
    for module in _MODULES:
        _wrap(sys.modules[module], '_create_kvstore', _refuse_module)
    _wrap(Trainer, '__init__', _make_trainer)
    for name, method in _METHODS.items():
        _wrap(Trainer, name, _by_steps(method))
    _wrap(Trainer, '_reset_kvstore', _reset_kvstore)
    for name, make in (('initialize', _initialize), ('set_data', _set_data),
                       ('data', _value_read), ('list_data', _value_read),
                       ('grad', _around(own_rows_copy.gradient_read)),
                       ('list_grad', _around(own_rows_copy.gradient_read)),
                       ('list_ctx', _around(own_rows_copy.unread)), ('_load_init', _load_init),
                       ('_reduce', _reduce), ('reset_ctx', _reset_ctx), ('_set_trainer', _set_trainer)):
        _wrap(Parameter, name, make)
    _wrap(ParameterDict, 'zero_grad', _zero_grad)
    _wrap(nn.Embedding, 'forward', _embedding_forward)
    _wrap(sys, 'excepthook', _excepthook)


def _wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace ``owner.name`` by what `make` makes of it, once."""
    original = getattr(owner, name)
    if not getattr(original, '_mxhybrid', False):
        replacement: Any = functools.wraps(original)(make(original))
        replacement._mxhybrid = True
        setattr(owner, name, replacement)


# -- how a store is made -----------------------------------------------------------------------------------------


def _create_kvstore(original: Any) -> Any:
    def create(kvstore: Any, num_device: int, arg_params: Any) -> Any:
        if not is_ours(kvstore):
            return original(kvstore, num_device, arg_params)
        if isinstance(kvstore, str):
            kvstore = mx.kv.create(kvstore)
        # Updating in the worker is cheaper and leaves every feature of the Trainer; MXNet asks for an update on
        # the store by itself where the weights live there.
        return kvstore, bool(int(os.environ.get('MXNET_UPDATE_ON_KVSTORE', '0')))
    return create


def _refuse_module(original: Any) -> Any:
    """For MXNet's older interfaces: they divide by the workers, and start alike, where the type has 'dist' in it."""
    def create(kvstore: Any, num_device: int, arg_params: Any) -> Any:
        if is_ours(kvstore):
            sparse = sorted(name for name, value in (arg_params or {}).items() if value.stype == 'row_sparse')
            net = ('a net of gluon layers, with gluon.contrib.nn.SparseEmbedding for its row_sparse weights (%s), '
                   'which mx.gluon.SymbolBlock does not take' % ', '.join(sparse) if sparse
                   else 'a gluon net, mx.gluon.SymbolBlock(symbol, inputs) for example,')
            raise InputError("kvstore='hybrid' serves gluon.Trainer only: mx.mod.Module and FeedForward would train "
                             "every worker from values of its own, with gradients that are not divided by the number "
                             "of workers. Train %s with gluon.Trainer, or use kvstore='dist_sync'" % net)
        return original(kvstore, num_device, arg_params)
    return create


# -- what a Trainer does -----------------------------------------------------------------------------------------


def _by_steps(method: Callable[..., Any]) -> Callable[[Any], Any]:
    """The hook of a Trainer's method that calls one of :class:`Steps`, which gets what would be called otherwise."""
    def make(original: Any) -> Any:
        def call(self: Any, *args: Any, **keywords: Any) -> Any:
            steps = steps_of(self)
            if steps is None:
                return original(self, *args, **keywords)
            return method(steps, functools.partial(original, self), *args, **keywords)
        return call
    return make


def _make_trainer(original: Any) -> Any:
    def make(self: Any, params: Any, optimizer: Any, optimizer_params: Any = None, kvstore: Any = 'device',
             *args: Any, **keywords: Any) -> None:
        original(self, params, optimizer, optimizer_params, store_for(self, kvstore), *args, **keywords)
        steps = steps_of(self)
        if steps is not None:
            steps.made()
    return make


def _reset_kvstore(original: Any) -> Any:
    def reset(self: Any) -> None:
        steps = steps_of(self) if self.__dict__.get('_kv_initialized') else None  # not in its __init__
        if steps is not None:
            steps.give_up_store()
        original(self)
    return reset


# -- what happens to a Parameter ---------------------------------------------------------------------------------


def _reduce(original: Any) -> Any:
    def reduce(self: Any) -> Any:
        refuse_parts([self], 'save_parameters or export')
        steps = None if self._trainer is None else steps_of(self._trainer)
        if steps is not None:
            steps.agreement.look_back()
        with own_rows_copy.copied(self):
            if self._stype == 'default' or steps is None:
                return original(self)
        # MXNet's own copies all rows as float32.
        whole = mx.nd.sparse.zeros('row_sparse', self.shape, ctx=mx.cpu(), dtype=self.dtype)
        everything = mx.nd.arange(self.shape[0], dtype='int64', ctx=mx.cpu())
        self._trainer._row_sparse_pull(self, whole, everything, full_idx=True)
        return whole
    return reduce


def _reset_ctx(original: Any) -> Any:
    def reset_ctx(self: Any, ctx: Any) -> None:
        refuse_move(self, 'reset_ctx')
        original(self, ctx)
    return reset_ctx


def _load_init(original: Any) -> Any:
    def load_init(self: Any, *args: Any, **keywords: Any) -> None:
        refuse_parts([self], 'load_parameters')
        with own_rows_copy.unread(self):
            original(self, *args, **keywords)
    return load_init


def _set_data(original: Any) -> Any:
    def set_data(self: Any, data: Any) -> None:
        with own_rows_copy.overwritten(self):
            original(self, data)
        _was_given_values(self)
    return set_data


def _set_trainer(original: Any) -> Any:
    def set_trainer(self: Any, trainer: Any) -> None:
        original(self, trainer)
        own_rows_copy.taken_over(self, trainer)
    return set_trainer


def _initialize(original: Any) -> Any:
    def initialize(self: Any, *args: Any, **keywords: Any) -> None:
        before = self.__dict__.get('_data')
        if keywords.get('force_reinit', args[3] if len(args) > 3 else False):
            refuse_new_values(self)
        with own_rows_copy.unread(self):
            original(self, *args, **keywords)
        if before is not None and self.__dict__['_data'] is not before:  # force_reinit
            _was_given_values(self)
    return initialize


def _was_given_values(param: Any) -> None:
    steps = None if param._trainer is None else steps_of(param._trainer)
    if steps is not None:
        steps.given_values(param)


def _value_read(original: Any) -> Any:
    def read(self: Any, *args: Any, **keywords: Any) -> Any:
        refuse_left(self)
        own_rows_copy.value_read(self)
        share_value_read(self)
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
                stack.enter_context(own_rows_copy.unread(param))
            original(self)
    return zero_grad


def _embedding_forward(original: Any) -> Any:
    def forward(self: Any, x: Any, *args: Any) -> Any:
        trainer = self.weight._trainer
        with own_rows_copy.forward(self, x, trainer is not None and steps_of(trainer) is not None):
            return original(self, x, *args)
    return forward


# -- a script that fails -----------------------------------------------------------------------------------------


def _gist(text: str) -> str:
    """One line of an error's text: the first, but of a traceback, as in errors of MXNet's native code, the last."""
    lines = text.strip().split('\n')
    return re.sub(r'^(\w+\.)*MXNetError: ', '', lines[-1].strip()) if lines[0].startswith('Traceback') else lines[0]


def _script_goes_on() -> bool:
    """Whether a hook for exceptions was called by a console, which shows an error and takes the next line."""
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_globals.get('__name__') == 'code':  # of Python's library
            return True
        frame = frame.f_back
    return bool(sys.flags.interactive) or hasattr(sys, 'ps1') and not hasattr(sys.modules['__main__'], '__file__')


def _excepthook(original: Any) -> Any:
    """End the whole job when this worker's script ends with an exception."""
    def hook(kind: Any, value: BaseException, traceback: Any) -> None:
        original(kind, value, traceback)
        if _script_goes_on():
            return
        fail_current('%s: %s%s' % (kind.__name__, _gist(str(value)), remedy(value)),
                     echo=isinstance(value, (mx.base.MXNetError, Left)))
    return hook
