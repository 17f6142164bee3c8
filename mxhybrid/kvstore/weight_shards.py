"""Shards of weights: a worker holds only a part of such a weight, and the store does not hold it at all.

:mod:`mxhybrid.parallel` marks the parameters, and sums their gradients.  A Trainer's keys are the same on all workers,
since each worker has every parameter, some of them as placeholders.  A shard is a
:class:`mxhybrid.parallel.runtime.sharded_parameters.ShardedWeight`.
"""
from contextlib import contextmanager
from functools import partial
from typing import Any, ContextManager, Iterator, List, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon

from ..base.errors import InputError
from ..base.text import size_text
from ..native import trainers
from ..native.arrays import host_view
from ..native.engine import write_after

_ATTRIBUTE = 'mxhybrid_shard'
#: Name under which the job monitor counts calls of a split network with redistributions.
NETWORK_CALL = 'a call of a network that is split'
#: Attribute of a parameter of a split network: a line of text about the redistributions of the network.
_REDISTRIBUTIONS = 'mxhybrid_redistributions'
#: Attribute of a parameter whose values were moved to shards.
_EMPTIED = 'mxhybrid_emptied'
#: MXNet's own default.
_UNIFORM = mx.initializer.Uniform()
#: Size in bytes from which on a weight is updated alone: its update takes as long as a further operation.
LARGE_BYTES = 1 << 18
#: MXNet's optimizers whose update of an element depends on other elements or other weights, or is random.
_NOT_BY_ELEMENT = ('LARS', 'LAMB', 'LANS', 'LBSGD', 'SGLD', 'Nadam', 'GroupAdaGrad')


def check_optimizer(optimizer: Any, remedy: str = 'a plan that splits no weights') -> None:
    """Refuse an optimizer, or a class derived from it, that would update shards otherwise than the whole weight.

    `remedy` is what the user may have instead of another optimizer.
    """
    name = next((kind.__name__ for kind in type(optimizer).__mro__ if kind.__name__ in _NOT_BY_ELEMENT), None)
    if name is not None:
        raise InputError('optimizer %s updates elements by norms of whole weights, or by other weights, of which '
                         'workers hold shards only: use an optimizer that updates element by element, such as sgd or '
                         'adam, or %s' % (name, remedy))


def set_shard(param: Any, shard: Any) -> None:
    """Mark `param`, before a Trainer has it, as a shard, or as a placeholder if this worker does not hold it."""
    setattr(param, _ATTRIBUTE, shard)


def shard_of(param: Any) -> Any:
    """Return the shard that a parameter is, None for a whole weight."""
    return getattr(param, _ATTRIBUTE, None)


def shards_in(attributes: List[Any]) -> List[Any]:
    """Return the shards of parameters, None for whole weights, given the dicts of the parameters' attributes."""
    return [param.get(_ATTRIBUTE) for param in attributes]


def unsharded(params: List[Any]) -> List[Any]:
    """Return the parameters that are whole weights."""
    return [param for param in params if shard_of(param) is None]


@contextmanager
def without_placeholders(params: List[Any]) -> Iterator[List[int]]:
    """Let a step take placeholders, whose gradients no backward pass computes, as frozen within the block; yield the
    indices of those that are trained: only other workers train them.
    """
    indices = [index for index, param in enumerate(params) for shard in [shard_of(param)]
               if shard is not None and not shard.holds and param.grad_req != 'null']
    with trainers.taken_as_frozen([params[index] for index in indices]):
        yield indices


def agreed(param: Any) -> List[Any]:
    """Return the properties of a whole weight that all workers must agree on: grad_req and shape."""
    shard = shard_of(param)
    return [param.grad_req, list((param.shape or ()) if shard is None else shard.whole_shape)]


def set_redistributions(param: Any, line: str) -> None:
    """Note a line of text about the redistributions of the network that a parameter belongs to."""
    setattr(param, _REDISTRIBUTIONS, line)


def shards_line(params: List[Any]) -> str:
    """Return lines of text about the shards that this worker holds, and the sums of their gradients.

    Lines about redistributions follow.  The text is empty if nothing is split.
    """
    shards = [(param, shard) for param in params for shard in [shard_of(param)] if shard is not None]
    held = [(param, shard) for param, shard in shards if shard.holds]
    groups = sorted(len(shard.group) for param, shard in held if param.grad_req != 'null' and len(shard.group) > 1)
    bytes_held, bytes_whole = (sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in shapes)
                               for shapes in ([(param.shape, param.dtype) for param, _ in held],
                                              [(shard.whole_shape, param.dtype) for param, shard in shards]))
    sums = ', '.join('%d among %d workers' % (groups.count(size), size) for size in sorted(set(groups))) or 'none'
    lines = [] if not shards else ['split weights: %d of %d here, %s of %s; gradients that are summed: %s' % (
        len(held), len(shards), size_text(bytes_held), size_text(bytes_whole), sums)]
    redistribution_lines = dict.fromkeys(getattr(param, _REDISTRIBUTIONS, '') for param in params)
    return '\n'.join(lines + list(filter(None, redistribution_lines)))


def updating_eagerly(trainer: Any) -> ContextManager[None]:
    """Surround an update of sharded weights: each large weight is updated as soon as its own gradient is computed.

    MXNet's sgd updates four weights in one operation, which waits for the last of their gradients.  The backward pass
    of a split network waits for other workers again and again.  Meanwhile a large weight whose gradient is ready can be
    updated, provided that the redistribution that backward has reached begins before the update.
    """
    return trainers.with_updaters(trainer, lambda updater: partial(_update_eagerly, updater))


def _update_eagerly(updater: Any, keys: Sequence[Any], gradients: Sequence[Any], weights: Sequence[Any]) -> None:
    small: List[Tuple[Any, Any, Any]] = []
    # Gradients of the last layers are ready first.
    for key, gradient, weight in reversed(list(zip(keys, gradients, weights))):
        if gradient.stype == 'default' and weight.size * np.dtype(weight.dtype).itemsize >= LARGE_BYTES:
            # The engine queues readers of the gradient only after an operation that writes it.  So redistributions
            # that follow the same part of the backward pass begin before the update.
            write_after([], [gradient])
            updater([key], [gradient], [weight])
        else:
            small.append((key, gradient, weight))
    if small:
        updater(*map(list, zip(*reversed(small))))


def refuse_shards(params: List[Any], call: str) -> None:
    """Refuse a call in which a worker alone would take its shard of a weight for the whole weight."""
    sharded = next((param for param in params if shard_of(param) is not None), None)
    if sharded is not None:
        raise InputError('%s: the workers hold shards of %s: use save_parameters, load_parameters or export of the '
                         'network that parallelize returned, or mxhybrid.checkpoint.save and load, which all workers '
                         'call' % (call, sharded.name))


def _is_split(param: Any) -> bool:
    """Return whether a parameter belongs to a split network."""
    return _REDISTRIBUTIONS in param.__dict__ or shard_of(param) is not None


def refuse_move(param: Any, call: str, ctx: Any) -> None:
    """Refuse to move a parameter of a split network from the device on which its layers are computed."""
    contexts = [ctx or mx.current_context()] if not isinstance(ctx, (list, tuple)) else list(ctx)
    if _is_split(param) and contexts != param.list_ctx():
        raise InputError('%s: %s belongs to a split network, whose layers are computed on %s: leave it there'
                         % (call, param.name, param.list_ctx()[0]))


def refuse_cast(param: Any, dtype: Any) -> None:
    """Refuse to give a parameter of a split network another type."""
    if _is_split(param) and np.dtype(dtype) != np.dtype(param.dtype):
        raise InputError('cast: the types of a split network are fixed, and %s is %s: cast it to %s before parallelize'
                         % (param.name, np.dtype(param.dtype), np.dtype(dtype)))


def own_part(param: Any, values: Any) -> Any:
    """Return the values that this worker holds of a weight, given those of the whole weight."""
    shard = shard_of(param)
    if shard is None:
        return values
    if tuple(values.shape) != tuple(shard.whole_shape):
        raise InputError('%s: values of shape %s, but the whole weight has shape %s, and this worker holds %s of it: '
                         'give the values of the whole weight on every worker'
                         % (param.name, tuple(values.shape), tuple(shard.whole_shape), tuple(param.shape)))
    return shard.part_of(values) if shard.holds else param.data()


def initialise_again(param: Any, init: Any = None, ctx: Any = None, default_init: Any = _UNIFORM,
                     force_reinit: bool = True) -> None:
    """Give all shards of a weight new values, as ``initialize`` of gluon does (collective).

    Each worker draws the values of the whole weight, so that its random numbers remain those of one process.  The
    values of worker 0 are used.
    """
    shard = shard_of(param)
    whole = gluon.Parameter(param.name, shape=shard.whole_shape, dtype=param.dtype, init=param.init)
    whole.initialize(init, mx.cpu(), default_init)
    values = host_view(whole.data())
    trainers.renew_arrays(param)
    shard.scatter(lambda first, last: values[first:last], param.data() if shard.holds else None, shard.whole_shape,
                  param.dtype)


def set_emptied(param: Any) -> None:
    """Mark a parameter whose values were moved to the shards of other parameters."""
    setattr(param, _EMPTIED, True)


def refuse_emptied(param: Any) -> None:
    """Refuse to use such a parameter."""
    if _EMPTIED in param.__dict__ and not trainers.has_values(param):
        raise InputError('%s no longer has values, since its network was split: use the network that parallelize '
                         'returned, make the Trainer of its collect_params(), and use its for_data() for joint batches '
                         'of another size' % param.name)
