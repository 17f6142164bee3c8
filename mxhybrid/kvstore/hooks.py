"""The hooks in MXNet 1.9.1; each acts for hybrid stores only.

================================  ============================================================================
hooked                            reason
================================  ============================================================================
``Trainer.__init__``,             workers begin with the values of worker 0; libraries ask for a local store; dynamic
``Trainer._check_contexts``       tables (:mod:`mxhybrid.kvstore.trainer_tables`) have no arrays
``trainer._create_kvstore``       with one device, any name without 'dist' silently becomes no store at all
``model._create_kvstore``,        refused: ``mx.mod.Module`` does what several workers need only if the type of a
``module._create_kvstore``        store has 'dist' in it
``Trainer.step``,                 all workers must give the same batch size; a script that calls allreduce_grads()
``Trainer.update``                itself needs the sums of all workers
``Trainer._allreduce_grads``,     workers must agree on some values, partly before a push updates weights on servers;
``Trainer._update``               a step begins and ends here (:mod:`mxhybrid.kvstore.trainer_step`, also for the next)
``Trainer._init_kvstore``         parameter names, for messages, the report and partition patterns
``Trainer._reset_kvstore``,       new weights during training: MXNet makes a new store and fills it from the worker,
``Parameter.set_data``,           which holds only some rows of a table; if workers update, they may have got different
``Parameter.initialize``          values
``Trainer._row_sparse_pull``      before the first step a parameter is saved and read from the worker's own array
``Trainer.save_states``,          worker 0 writes one file; MXNet would write it on every worker at the same time
``Trainer.load_states``
``CheckpointHandler``             likewise: all workers would write and remove the files of one folder
``nn.Embedding.forward``          which rows of a weight on servers are needed (:mod:`mxhybrid.kvstore.on_demand_copy`)
``Parameter.data``, ``grad``,     other reads of a value or a gradient
``list_data``, ``list_grad``
``Parameter.list_ctx``,           no reads: they look at the arrays, but not into them
``Parameter._load_init``,
``ParameterDict.zero_grad``       also: the gradients of dynamic tables, as for the next
``amp.unscale``
``Parameter._set_trainer``        values that servers hold for another Trainer return to the worker
``Parameter._reduce``             saving: whole weights that servers hold, and tables with their own dtype; refused for
                                  shards of weights
``Parameter.reset_ctx``,          another device or type is refused for parameters of split networks
``Parameter.cast``
``sys.excepthook``                a worker whose script fails ends the job
================================  ============================================================================
"""
import contextlib
import functools
import importlib
import os
import re
import sys
from typing import Any, Callable, Dict

import mxnet as mx
from mxnet.gluon import Trainer, nn
from mxnet.gluon.contrib.estimator import CheckpointHandler
from mxnet.gluon.parameter import Parameter, ParameterDict
from mxnet.kvstore import KVStore

from ..base.errors import InputError, SettingError
from ..base.log import get_logger
from ..base.machine import remedy
from ..base.settings import DECLARED, variable
from ..comm.horovod_import import keep_symbols_local
from ..job.join import current, fail_current, fails_like_another, member
from ..messaging.keeper_channel import tell_keeper
from ..messaging.local_sockets import Left
from ..native.trainers import exchanges_by_itself, renew_arrays
from . import on_demand_copy
from .hybrid import Hybrid
from .table_parameter import TableParameter
from .trainer_step import TrainerHooks, hooks_of, is_hybrid, share_value_read
from .trainer_tables import split_off, tables_split_off
from .weight_shards import (
    initialise_again,
    own_part,
    refuse_cast,
    refuse_emptied,
    refuse_move,
    refuse_shards,
    shard_of,
)

logger = get_logger(__name__)

#: MXNet's stores that work within one process.
_LOCAL = ('local', 'local_allreduce_cpu', 'device', 'local_allreduce_device')

#: Where ``mx.mod.Module``, ``FeedForward`` and ``SVRGModule`` find ``_create_kvstore``.
_MODULES = ('mxnet.model', 'mxnet.module.module')

#: Where ``amp.unscale`` is found; ``import mxnet`` does not import them.
_AMP = ('mxnet.contrib.amp.amp', 'mxnet.contrib.amp')

#: The method that takes the place of a Trainer's method.
_METHODS: Dict[str, Callable[..., Any]] = {
    'step': TrainerHooks.step, 'update': TrainerHooks.update_by_hand,
    '_allreduce_grads': TrainerHooks.allreduce_grads, '_update': TrainerHooks.update,
    '_init_kvstore': TrainerHooks.init_kvstore, '_row_sparse_pull': TrainerHooks.row_sparse_pull,
    'save_states': TrainerHooks.save_states, 'load_states': TrainerHooks.load_states}


def install() -> None:
    """Install all hooks, once."""
    keep_symbols_local()
    _wrap(sys.modules['mxnet.gluon.trainer'], '_create_kvstore', _create_kvstore)
    for module in _MODULES:
        _wrap(sys.modules[module], '_create_kvstore', _refuse_module)
    _wrap(Trainer, '__init__', _make_trainer)
    _wrap(Trainer, '_check_contexts', _check_contexts)
    for name, method in _METHODS.items():
        _wrap(Trainer, name, functools.partial(_call_trainer_hooks, method))
    _wrap(Trainer, '_reset_kvstore', _reset_kvstore)
    for name, hook in (('initialize', _initialize), ('set_data', _set_data), ('data', _read_value),
                       ('list_data', _read_value), ('grad', _read_gradient), ('list_grad', _read_gradient),
                       ('list_ctx', _list_ctx), ('_load_init', _load_init), ('_reduce', _reduce),
                       ('reset_ctx', _reset_ctx), ('cast', _cast), ('_set_trainer', _set_trainer)):
        _wrap(Parameter, name, hook)
    _wrap(ParameterDict, 'zero_grad', _zero_grad)
    _wrap(CheckpointHandler, '__init__', _make_folder)
    for name in ('_save_symbol', '_save_params_and_trainer'):
        _wrap(CheckpointHandler, name, _save_on_worker_0)
    _wrap(nn.Embedding, 'forward', _embedding_forward)
    _wrap(sys, 'excepthook', _excepthook)


def _wrap(owner: Any, name: str, hook: Callable[..., Any]) -> None:
    """Replace ``owner.name``, once, by a function that calls `hook` with the original and its arguments."""
    original = getattr(owner, name)
    if not getattr(original, '_mxhybrid', False):
        replacement: Any = functools.wraps(original)(lambda *args, **keywords: hook(original, *args, **keywords))
        replacement._mxhybrid = True
        setattr(owner, name, replacement)


# -- how a store is made -----------------------------------------------------------------------------------------


def _is_local(kvstore: Any) -> bool:
    name = kvstore if isinstance(kvstore, str) else kvstore.type if isinstance(kvstore, KVStore) else ''
    return kvstore is None or not is_hybrid(kvstore) and name.lower() in _LOCAL


def _store_for(trainer: Any, kvstore: Any) -> Any:
    """Return the store that a new Trainer takes in place of the one it was given (collective if the setting is 1).

    With the setting ``replace_local_stores`` libraries that make the Trainer themselves, with ``kvstore='device'`` as a
    constant, can train in a job of several workers.
    """
    if not _is_local(kvstore) or exchanges_by_itself(trainer):
        return kvstore
    job = current()
    if job is None:
        name = variable('replace_local_stores')
        text = os.environ.get(name, '')  # other settings do not matter if this one is not set
        if not text.strip() or not DECLARED['replace_local_stores'].check(name, text):
            return kvstore
        job = member()
    if not job.settings.replace_local_stores or not job.joined:
        return kvstore
    logger.info("a Trainer takes kvstore='hybrid' in place of %r: its steps divide the sum of the gradients of %d "
                'workers by the batch size that step() is given', getattr(kvstore, 'type', kvstore), job.num_workers)
    return 'hybrid'


def _create_kvstore(original: Any, kvstore: Any, num_device: int, arg_params: Any) -> Any:
    if not is_hybrid(kvstore):
        return original(kvstore, num_device, arg_params)
    if isinstance(kvstore, str):
        kvstore = mx.kv.create(kvstore)
    # An update in the worker is cheaper and supports every feature of the Trainer.  MXNet itself asks for an update on
    # the store if the weights are ready.
    return kvstore, bool(int(os.environ.get('MXNET_UPDATE_ON_KVSTORE', '0')))


def _refuse_module(original: Any, kvstore: Any, num_device: int, arg_params: Any) -> Any:
    """Refuse a hybrid store for MXNet's older interfaces."""
    if is_hybrid(kvstore):
        sparse = sorted(name for name, value in (arg_params or {}).items() if value.stype == 'row_sparse')
        net = ('a net of gluon layers, with gluon.contrib.nn.SparseEmbedding for its row_sparse weights (%s), which '
               'mx.gluon.SymbolBlock does not take' % ', '.join(sparse) if sparse
               else 'a gluon net, mx.gluon.SymbolBlock(symbol, inputs) for example,')
        raise InputError("kvstore='hybrid' serves gluon.Trainer only: mx.mod.Module and FeedForward would train every "
                         "worker from values of its own, with gradients that are not divided by the number of workers. "
                         "Train %s with gluon.Trainer, or use kvstore='dist_sync'" % net)
    return original(kvstore, num_device, arg_params)


# -- methods of a Trainer ----------------------------------------------------------------------------------------


def _call_trainer_hooks(method: Callable[..., Any], original: Any, self: Any, *args: Any, **keywords: Any) -> Any:
    """Call a method of :class:`TrainerHooks` in the place of a Trainer's, and give it the original one."""
    trainer_hooks = hooks_of(self)
    if trainer_hooks is None:
        return original(self, *args, **keywords)
    return method(trainer_hooks, functools.partial(original, self), *args, **keywords)


def _make_trainer(original: Any, self: Any, params: Any, optimizer: Any, optimizer_params: Any = None,
                  kvstore: Any = 'device', *args: Any, **keywords: Any) -> None:
    params, kvstore = split_off(self, params), _store_for(self, kvstore)
    tables = tables_split_off(self)
    if tables:
        if not is_hybrid(kvstore):
            raise InputError("kvstore=%r: %s is a dynamic table, whose rows only the hybrid store updates: give the "
                             "Trainer kvstore='hybrid', also in one process"
                             % (getattr(kvstore, 'type', kvstore), tables[0].name))
        for name in _AMP:
            _wrap(importlib.import_module(name), 'unscale', _unscale)
    original(self, params, optimizer, optimizer_params, kvstore, *args, **keywords)
    for table in tables:
        table._set_trainer(self)
    trainer_hooks = hooks_of(self)
    if trainer_hooks is not None:
        trainer_hooks.after_init()


def _check_contexts(original: Any, self: Any) -> Any:
    contexts = original(self)
    for table in tables_split_off(self):
        if contexts is not None and contexts != table.list_ctx():
            raise InputError('%s is initialised on %s, and other parameters on %s: initialise all on the same '
                             'devices' % (table.name, table.list_ctx(), contexts))
        contexts = table.list_ctx()
    return contexts


def _unscale(original: Any, optimizer_or_trainer: Any) -> None:
    scale = getattr(optimizer_or_trainer, '_scale', 1.0)
    original(optimizer_or_trainer)
    trainer_hooks = hooks_of(optimizer_or_trainer)
    if trainer_hooks is not None:
        trainer_hooks.tables.scale(scale)


def _reset_kvstore(original: Any, self: Any) -> None:
    trainer_hooks = hooks_of(self) if self.__dict__.get('_kv_initialized') else None  # not in its __init__
    if trainer_hooks is not None:
        trainer_hooks.reset_kvstore()
    original(self)


# -- methods of a Parameter --------------------------------------------------------------------------------------


def _reduce(original: Any, self: Any) -> Any:
    refuse_shards([self], 'save_parameters or export')
    trainer_hooks = hooks_of(self._trainer)
    if trainer_hooks is not None:
        trainer_hooks.consistency.check_last_step()
    with on_demand_copy.copied(self):
        if self._stype == 'default' or trainer_hooks is None:
            return original(self)
    # MXNet's own copies all rows as float32.
    whole = mx.nd.sparse.zeros('row_sparse', self.shape, ctx=mx.cpu(), dtype=self.dtype)
    everything = mx.nd.arange(self.shape[0], dtype='int64', ctx=mx.cpu())
    self._trainer._row_sparse_pull(self, whole, everything, full_idx=True)
    return whole


def _reset_ctx(original: Any, self: Any, ctx: Any) -> None:
    refuse_move(self, 'reset_ctx', ctx)
    if shard_of(self) is None:
        original(self, ctx)
    else:
        renew_arrays(self)


def _cast(original: Any, self: Any, dtype: Any) -> None:
    refuse_cast(self, dtype)
    original(self, dtype)


def _load_init(original: Any, self: Any, data: Any, *args: Any, **keywords: Any) -> None:
    with on_demand_copy.unread(self):
        original(self, own_part(self, data), *args, **keywords)


def _set_data(original: Any, self: Any, data: Any) -> None:
    with on_demand_copy.unread(self):
        original(self, data if data.shape == self.shape else own_part(self, data))
    on_demand_copy.replaced(self)
    _note_new_values(self)


def _set_trainer(original: Any, self: Any, trainer: Any) -> None:
    original(self, trainer)
    on_demand_copy.taken_over(self, trainer)


def _initialize(original: Any, self: Any, *args: Any, **keywords: Any) -> None:
    before, again = self.__dict__.get('_data'), keywords.get('force_reinit', args[3] if len(args) > 3 else False)
    if again:
        refuse_move(self, 'initialize', keywords.get('ctx', args[1] if len(args) > 1 else None))
    with on_demand_copy.unread(self):
        (initialise_again if again and shard_of(self) is not None else original)(self, *args, **keywords)
    if before is not None and self.__dict__['_data'] is not before:  # force_reinit
        _note_new_values(self)


def _note_new_values(param: Any) -> None:
    trainer_hooks = hooks_of(param._trainer)
    if trainer_hooks is not None:
        trainer_hooks.note_new_values(param)


def _read_value(original: Any, self: Any, *args: Any, **keywords: Any) -> Any:
    if self._grad_stype != 'default' or self._data is None:  # a network reads all of its weights in every call
        refuse_emptied(self)
        on_demand_copy.value_read(self)
    if self._trainer is not None:
        share_value_read(self)
    return original(self, *args, **keywords)


def _read_gradient(original: Any, self: Any, *args: Any, **keywords: Any) -> Any:
    if self._grad_stype == 'default':
        return original(self, *args, **keywords)
    with on_demand_copy.gradient_read(self):
        return original(self, *args, **keywords)


def _list_ctx(original: Any, self: Any) -> Any:
    with on_demand_copy.unread(self):
        return original(self)


def _zero_grad(original: Any, self: Any) -> None:
    with contextlib.ExitStack() as stack:
        for param in self.values():
            stack.enter_context(on_demand_copy.unread(param))
        original(self)
    for param in self.values():
        if isinstance(param, TableParameter):
            param.zero_grad()


def _embedding_forward(original: Any, self: Any, x: Any, *args: Any) -> Any:
    with on_demand_copy.forward(self, x, trains=hooks_of(self.weight._trainer) is not None):
        return original(self, x, *args)


# -- checkpoints of gluon's estimator ----------------------------------------------------------------------------


def _make_folder(original: Any, self: Any, model_dir: str, *args: Any, **keywords: Any) -> None:
    os.makedirs(model_dir, exist_ok=True)  # MXNet looks first, and fails if another worker makes it then
    original(self, model_dir, *args, **keywords)


def _save_on_worker_0(original: Any, self: Any, estimator: Any, *prefix: str) -> None:
    store = estimator.trainer._kvstore
    if not isinstance(store, Hybrid) or store.rank == 0:
        original(self, estimator, *prefix)
    elif prefix:  # worker 0 saves states, for which it may need the shards of this worker
        estimator.trainer.save_states('')


# -- a script that fails -----------------------------------------------------------------------------------------


def _gist(text: str) -> str:
    """Return one line of an error's text: the first, or the last of a traceback, as MXNet's native errors have it."""
    lines = text.strip().split('\n')
    return re.sub(r'^(\w+\.)*MXNetError: ', '', lines[-1].strip()) if lines[0].startswith('Traceback') else lines[0]


def _script_goes_on() -> bool:
    """Return whether a console called the exception hook: it shows an error and takes the next line."""
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_globals.get('__name__') == 'code':  # in Python's standard library
            return True
        frame = frame.f_back
    return bool(sys.flags.interactive) or hasattr(sys, 'ps1') and not hasattr(sys.modules['__main__'], '__file__')


def _excepthook(original: Any, kind: Any, value: BaseException, traceback: Any) -> None:
    """End the whole job when this worker's script ends with an exception.

    If workers end with the same error, only the first one shows it.
    """
    if _script_goes_on():
        original(kind, value, traceback)
        return
    advice, echo = remedy(value), isinstance(value, (mx.base.MXNetError, Left))
    text = '%s: %s%s' % (kind.__name__, _gist(str(value)), advice)
    if isinstance(value, (InputError, SettingError)):
        tell_keeper(['refusal', text])
    if echo or original is not sys.__excepthook__ or not fails_like_another(text):
        original(kind, value, traceback)
    fail_current(text, echo, is_written=not advice)
