"""Private attributes of a gluon Trainer and its Parameters: a function for each that other modules need."""
import ctypes
import operator
from contextlib import contextmanager
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Mapping, Optional, Sequence, Tuple

from mxnet import autograd, initializer, lr_scheduler, nd
from mxnet.base import _LIB
from mxnet.context import cpu
from mxnet.gluon import Trainer


def start(trainer: Any) -> None:
    """Make the Trainer's store and initialise its parameters there, as the first step would do."""
    if not trainer._kv_initialized:
        trainer._init_kvstore()
    if trainer._params_to_init:
        trainer._init_params()


def has_started(trainer: Any) -> bool:
    """Return whether the Trainer has its store, with all parameters in it."""
    return trainer._kv_initialized and not trainer._params_to_init


def store_of(trainer: Any) -> Any:
    """Return the Trainer's store; None before it is made, and in one process that needs none."""
    return trainer._kvstore


def wanted_store(trainer: Any) -> Any:
    """Return the argument from which the Trainer makes its store: a store, a name or None."""
    return trainer._kvstore_params['kvstore']


def set_wanted_store(trainer: Any, store: Any) -> None:
    """Make a Trainer that has no store yet use `store`."""
    trainer._kvstore_params['kvstore'] = store


def exchanges_by_itself(trainer: Any) -> bool:
    """Return whether a Trainer's class exchanges gradients without a store, as Horovod's does."""
    return (type(trainer)._allreduce_grads is not Trainer._allreduce_grads
            or type(trainer).allreduce_grads is not Trainer.allreduce_grads)


def makes_plain_steps(trainer: Any) -> bool:
    """Return whether nothing but MXNet's code runs between the exchange of gradients and the update of a step."""
    names = 'step', '_allreduce_grads', '_update'
    scheduler = trainer._optimizer.lr_scheduler
    return (all(getattr(type(trainer), name) is getattr(Trainer, name) and name not in vars(trainer) for name in names)
            and (scheduler is None or type(scheduler).__module__ == lr_scheduler.__name__))


def updates_on_store(trainer: Any) -> bool:
    """Return whether the store makes the updates, and not the Trainer."""
    return bool(trainer._kvstore is not None and trainer._update_on_kvstore)


def updaters_of(trainer: Any) -> List[Any]:
    """Return the updaters of this process: one for the store, or one for each device."""
    return [trainer._kvstore._updater] if updates_on_store(trainer) else trainer._updaters


@contextmanager
def with_updaters(trainer: Any, around: Callable[[Any], Any]) -> Iterator[None]:
    """Replace each updater of this worker, one for each device, by ``around(updater)`` within the block."""
    updaters = trainer._updaters
    trainer._updaters = [around(updater) for updater in updaters]
    try:
        yield
    finally:
        trainer._updaters = updaters


def device_numbers(trainer: Any) -> List[int]:
    """Return the numbers of the Trainer's devices, by which optimizers count updates."""
    return [context.device_id for context in trainer._contexts]


def device_kinds(trainer: Any) -> str:
    """Return the kinds of the Trainer's devices: 'cpu', 'gpu', or 'cpu and gpu'."""
    return ' and '.join(sorted({context.device_type for context in trainer._contexts}))


def device_of(context: Any) -> Tuple[int, int]:
    """Return the kind and the number of a device: a key of dicts that is found faster than a context."""
    return context.device_typeid, context.device_id


def place_on(param: Any, context: Any) -> Optional[int]:
    """Return the index of a parameter's array for operators on `context`; None if it has none there.

    Pinned memory counts as the CPU (``Parameter._check_and_get``).
    """
    indices = param._ctx_map[context.device_typeid & 1]
    return indices[context.device_id] if context.device_id < len(indices) else None


def loss_scaler_of(trainer: Any) -> Any:
    """Return AMP's loss scaler; None without AMP."""
    return getattr(trainer, '_amp_loss_scaler', None)


def divide_by(trainer: Any, batch_size: float) -> None:
    """Let the optimizer divide the sums of gradients as ``step(batch_size)`` does."""
    trainer._optimizer.rescale_grad = trainer._scale / batch_size


def params_of(trainer: Any) -> List[Any]:
    """Return the Trainer's parameters; their indices are their keys in the store."""
    return trainer._params


def trained_params(trainer: Any) -> List[Tuple[int, Any]]:
    """Return key and parameter of all parameters that are not frozen."""
    return [(key, param) for key, param in enumerate(trainer._params) if param.grad_req != 'null']


def key_of(trainer: Any, param: Any) -> int:
    """Return the key of a parameter in the Trainer's store."""
    return trainer._param2idx[param.name]


def trainer_of(param: Any) -> Any:
    """Return the Trainer that got a parameter last, if any."""
    return param._trainer


def is_row_sparse(param: Any) -> bool:
    """Return whether the weight is row_sparse."""
    return param._stype == 'row_sparse'


def has_sparse_gradient(param: Any) -> bool:
    """Return whether the gradient is row_sparse."""
    return param._grad_stype == 'row_sparse'


def has_dense_gradient(param: Any) -> bool:
    """Return whether the gradient is dense."""
    return param._grad_stype == 'default'


#: Returns, from the dict of a parameter's attributes, the objects that name its arrays and say how they are used.
step_attributes: Callable[[Any], Tuple[Any, ...]] = operator.itemgetter(
    '_data', '_grad', '_grad_req', '_stype', '_grad_stype')


def is_ready(param: Any) -> bool:
    """Return whether a parameter is frozen, or has values and gradients; this does not count as reading them."""
    return param._grad_req == 'null' or (param.__dict__['_data'] is not None and param.__dict__['_grad'] is not None)


def lists_of(param: Any) -> Tuple[List[Any], List[Any]]:
    """Return gluon's lists of the weights and gradients of a parameter that is ready, without counting as a read."""
    return param.__dict__['_data'], param.__dict__['_grad']


def has_values(param: Any) -> bool:
    """Return whether a parameter has values; this does not count as reading them."""
    return param.__dict__.get('_data') is not None


def awaits_shape(param: Any) -> bool:
    """Return whether a parameter will be initialised once a forward pass has found its shape."""
    return bool(param._deferred_init)


def initialise_now(param: Any) -> None:
    """Initialise a parameter that waited for its shape, which is known now."""
    param._finish_deferred_init()


def defer_initialisation(param: Any, init: Any) -> None:
    """Let a parameter without values wait for :func:`initial_values` or :func:`initialise_now`, as ``initialize`` of
    gluon does with a parameter whose shape is not known; `init` is the initializer of the network.
    """
    if not has_values(param) and not awaits_shape(param):
        param._deferred_init = (init if param.init is None else param.init, [cpu()], init, None)


def has_known_shape(param: Any) -> bool:
    """Return whether a parameter has its whole shape before any forward pass."""
    return param.shape is not None and all(count > 0 for count in param.shape)


def initial_values(param: Any) -> Any:
    """Return the initial values of a parameter that waited for its shape, which is known now, without setting them."""
    init, _, default_init, data = param._deferred_init
    if data is None:
        data = nd.zeros(param.shape, dtype=param.dtype, ctx=cpu())
        initializer.create(default_init)(initializer.InitDesc(param.name, {'__init__': init}), data)
    return data


def whole_values(param: Any) -> Any:
    """Return a copy of all values, as files get them, from any device or server."""
    return param._reduce()


def load_values(param: Any, values: Any, ctx: Any, cast_dtype: bool, dtype_source: str) -> None:
    """Set the values of a parameter from a file, as ``load_parameters`` does."""
    param._load_init(values, ctx, cast_dtype=cast_dtype, dtype_source=dtype_source)


def drop_values(param: Any) -> None:
    """Free the values of a parameter, as if it had never been initialised."""
    param._data = param._grad = None
    param._deferred_init = ()


def arrays_of(param: Any) -> List[Any]:
    """Return a parameter's arrays on this worker's devices, of any storage type; MXNet's error if it has none."""
    return param._check_and_get(param._data, list)


def gradients_of(param: Any) -> List[Any]:
    """Return a parameter's gradients on this worker's devices; none before it has values, and if it is frozen."""
    return param._grad or []


def renew_arrays(param: Any) -> None:
    """Give a parameter new arrays with its values, and gradients of zeros, as ``reset_ctx`` does."""
    with autograd.pause():
        param._init_impl(param._data[0], param._ctx_list)


def frozen_names(params: Mapping[str, Any]) -> FrozenSet[str]:
    """Return the names of the parameters that have no gradients."""
    return frozenset(name for name, param in params.items() if param.grad_req == 'null')


def may_be_trained(param: Any) -> bool:
    """Return whether a parameter may have gradients; ``grad_req`` of others, as running averages, stays 'null'."""
    return bool(param._differentiable)


@contextmanager
def taken_as_frozen(params: Sequence[Any]) -> Iterator[None]:
    """Let MXNet take parameters as frozen within the block; they keep their gradients."""
    requests = [param._grad_req for param in params]
    try:
        for param in params:
            param._grad_req = 'null'
        yield
    finally:
        for param, request in zip(params, requests):
            param._grad_req = request


def is_fresh(array: Any) -> bool:
    """Return whether a backward pass has computed the gradient of an array since it was marked as used."""
    return bool(array._fresh_grad)


def are_fresh(arrays: Sequence[Any]) -> bool:
    """Return whether :func:`is_fresh` holds for all arrays, without a call of Python for each."""
    state, get_state = ctypes.c_int(), _LIB.MXNDArrayGetGradState
    reference = ctypes.byref(state)
    for array in arrays:
        if get_state(array.handle, reference):
            return is_fresh(array)  # raises the error
        if not state.value:
            return False
    return True


def mark_used(arrays: Sequence[Any]) -> None:
    """Mark the gradients of all arrays as used."""
    set_state, used = _LIB.MXNDArraySetGradState, ctypes.c_int(0)
    for array in arrays:
        if set_state(array.handle, used):
            set_fresh(array, False)  # raises the error


def set_fresh(array: Any, fresh: bool) -> None:
    """Mark the gradient of an array as new, or as used."""
    array._fresh_grad = fresh


def children_of(block: Any) -> List[Any]:
    """Return the blocks that a block holds."""
    return list(block._children.values())


@contextmanager
def not_hybridized(net: Any) -> Iterator[None]:
    """Let all blocks of a net call their operators one by one inside of the ``with`` block."""
    active: List[Any] = []
    net.apply(lambda block: active.append(block) if getattr(block, '_active', False) else None)
    try:
        for block in active:
            block._active = False
        yield
    finally:
        for block in active:
            block._active = True


def hint_of(block: Any) -> str:
    """Return the text before the number in the prefix that Gluon gives a block."""
    return str(block._alias())


def params_by_place(net: Any) -> Dict[str, Any]:
    """Return the parameters of a Block by structural name, as in ``save_parameters``; of a ParameterDict by name."""
    return net._collect_params_with_prefix() if hasattr(net, '_collect_params_with_prefix') else dict(net.items())


def put_param(params: Any, param: Any) -> Any:
    """Return the parameter of `param`'s name in a ParameterDict or its shared one; put `param` there if none has it."""
    existing = params._get_impl(param.name)
    if existing is not None:
        return existing
    params._params[param.name] = param
    return param
