"""What a gluon Trainer and its Parameters keep to themselves: one function for each thing that others need of them."""
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from mxnet import initializer, nd
from mxnet.context import cpu
from mxnet.gluon import Trainer


def start(trainer: Any) -> None:
    """Make the Trainer's store and initialise its parameters there, as the first step would."""
    if not trainer._kv_initialized:
        trainer._init_kvstore()
    if trainer._params_to_init:
        trainer._init_params()


def has_started(trainer: Any) -> bool:
    """Whether the Trainer has its store, with all parameters in it."""
    return trainer._kv_initialized and not trainer._params_to_init


def store_of(trainer: Any) -> Any:
    """The Trainer's store; None before it is made, and where one process needs none."""
    return trainer._kvstore


def wanted_store(trainer: Any) -> Any:
    """What the Trainer was given to make its store of: a store, a name or None."""
    return trainer._kvstore_params['kvstore']


def set_wanted_store(trainer: Any, store: Any) -> None:
    """Have a Trainer that has no store yet take `store`."""
    trainer._kvstore_params['kvstore'] = store


def exchanges_by_itself(trainer: Any) -> bool:
    """Whether a Trainer's class exchanges gradients without a store, as Horovod's does."""
    return (type(trainer)._allreduce_grads is not Trainer._allreduce_grads
            or type(trainer).allreduce_grads is not Trainer.allreduce_grads)


def updates_on_store(trainer: Any) -> bool:
    """Whether the store makes the updates, and not the Trainer."""
    return bool(trainer._kvstore is not None and trainer._update_on_kvstore)


def updaters_of(trainer: Any) -> List[Any]:
    """What updates in this process: one for the store, or one for each device."""
    return [trainer._kvstore._updater] if updates_on_store(trainer) else trainer._updaters


@contextmanager
def with_updaters(trainer: Any, around: Callable[[Any], Any]) -> Iterator[None]:
    """While it lasts what updates in this worker, for each device, is what `around` makes of it."""
    updaters = trainer._updaters
    trainer._updaters = [around(updater) for updater in updaters]
    try:
        yield
    finally:
        trainer._updaters = updaters


def device_numbers(trainer: Any) -> List[int]:
    """Numbers of the Trainer's devices, by which optimizers count updates."""
    return [context.device_id for context in trainer._contexts]


def device_kinds(trainer: Any) -> str:
    """What the Trainer's devices are: 'cpu', 'gpu', or both."""
    return ' and '.join(sorted({context.device_type for context in trainer._contexts}))


def place_on(param: Any, context: Any) -> Optional[int]:
    """Which of a parameter's arrays operators on `context` take, those in pinned memory as those on the CPU; None if it
    has none there (``Parameter._check_and_get``).
    """
    found = param._ctx_map[context.device_typeid & 1]
    return found[context.device_id] if context.device_id < len(found) else None


def loss_scaler_of(trainer: Any) -> Any:
    """AMP's loss scaler; None without AMP."""
    return getattr(trainer, '_amp_loss_scaler', None)


def params_of(trainer: Any) -> List[Any]:
    """The Trainer's parameters; their places are their keys in the store."""
    return trainer._params


def trained_params(trainer: Any) -> List[Tuple[int, Any]]:
    """Key and parameter of all that are not frozen."""
    return [(key, param) for key, param in enumerate(trainer._params) if param.grad_req != 'null']


def key_of(trainer: Any, param: Any) -> int:
    """The key of a parameter in the Trainer's store."""
    return trainer._param2idx[param.name]


def trainer_of(param: Any) -> Any:
    """The Trainer that a parameter was given to last, if any."""
    return param._trainer


def is_row_sparse(param: Any) -> bool:
    """Whether the weight is row_sparse."""
    return param._stype == 'row_sparse'


def has_sparse_gradient(param: Any) -> bool:
    """Whether the gradient is row_sparse."""
    return param._grad_stype == 'row_sparse'


def has_values(param: Any) -> bool:
    """Whether a parameter has values; looking does not count as reading them."""
    return param.__dict__.get('_data') is not None


def awaits_shape(param: Any) -> bool:
    """Whether a parameter will be initialised once a forward pass has found its shape."""
    return bool(param._deferred_init)


def initialise_now(param: Any) -> None:
    """Initialise a parameter that has waited for its shape, which is known now."""
    param._finish_deferred_init()


def initial_values(param: Any) -> Any:
    """What a parameter that has waited for its shape, which is known now, would begin with; it stays without."""
    init, _, default_init, data = param._deferred_init
    if data is None:
        data = nd.zeros(param.shape, dtype=param.dtype, ctx=cpu())
        initializer.create(default_init)(initializer.InitDesc(param.name, {'__init__': init}), data)
    return data


def whole_values(param: Any) -> Any:
    """A copy of all values, as files get it, wherever they are."""
    return param._reduce()


def load_values(param: Any, values: Any, ctx: Any, cast_dtype: bool, dtype_source: str) -> None:
    """Give a parameter values of a file, as ``load_parameters`` does."""
    param._load_init(values, ctx, cast_dtype=cast_dtype, dtype_source=dtype_source)


def drop_values(param: Any) -> None:
    """Free the values of a parameter, as if it had never been initialised."""
    param._data = param._grad = None
    param._deferred_init = ()


def arrays_of(param: Any) -> List[Any]:
    """A parameter's arrays on this worker's devices, whatever their storage type; MXNet's error if it has none."""
    return param._check_and_get(param._data, list)


def gradients_of(param: Any) -> List[Any]:
    """A parameter's gradients on this worker's devices; none before it has values, and where it is frozen."""
    return param._grad or []


def is_fresh(array: Any) -> bool:
    """Whether backward has computed the gradient of an array since the last step."""
    return bool(array._fresh_grad)


def set_fresh(array: Any, fresh: bool) -> None:
    """Have the gradient of an array count as new, or as one that was used."""
    array._fresh_grad = fresh


def params_by_place(net: Any) -> Dict[str, Any]:
    """Parameters of a Block by their place in it, as ``save_parameters`` names them; of a ParameterDict by name."""
    return net._collect_params_with_prefix() if hasattr(net, '_collect_params_with_prefix') else dict(net.items())
