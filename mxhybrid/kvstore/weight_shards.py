"""Shards of weights: a worker holds only a part of such a weight, and the store does not hold it at all.

:mod:`mxhybrid.parallel` marks the parameters, and sums their gradients.  A Trainer's keys are the same on all workers,
since each worker has every parameter, some of them as placeholders.
"""
import operator
from typing import Any, Callable, Iterator, List, Optional, Protocol, Tuple

import numpy as np

from ..base.errors import InputError
from ..base.text import size_text
from ..native import trainers

_ATTRIBUTE = 'mxhybrid_shard'
_get_shard = operator.methodcaller('get', _ATTRIBUTE)
#: Name under which the job monitor counts calls of a split network with redistributions.
NETWORK_CALL = 'a call of a network that is split'
#: Attribute of a parameter of a split network: a line of text about the redistributions of the network.
_REDISTRIBUTIONS = 'mxhybrid_redistributions'
#: Attribute of a parameter whose values were moved to shards.
_EMPTIED = 'mxhybrid_emptied'


class WeightShard(Protocol):
    """A box of a weight, which several workers may hold."""

    #: Shape of the whole weight.
    whole_shape: Any
    grad_req: str
    #: Whether this worker holds the box.
    holds: bool
    #: Ranks of the workers that hold the same box.
    group: List[int]

    def allreduce_(self, array: Any, priority: int) -> None:
        """Sum a gradient over the workers that hold the same box, in place; returns before the sum is complete."""

    def whole_of(self, shape: Tuple[int, ...]) -> Tuple[Tuple[int, ...], Any]:
        """Return the whole shape of an array that belongs to the box, as optimizer state does, and this worker's range
        of each dimension.

        The array has an element for each element of the box, or for each of its rows.  Any other array is whole
        already, and the same on all workers.  InputError if the whole shape cannot be inferred.
        """

    def gather(self, array: Any, shape: Tuple[int, ...], dtype: Any) -> Iterator[np.ndarray]:
        """Yield the rows of a whole array, piece by piece, on worker 0; `array` is this worker's part, None for none.

        All workers iterate until the end, and do not change their arrays until worker 0 has finished.
        """

    def scatter(self, rows: Callable[[int, int], np.ndarray], array: Any, shape: Tuple[int, ...], dtype: Any) -> None:
        """Overwrite the workers' parts of a whole array with worker 0's ``rows(first, last)`` (collective).

        `array` is this worker's part, None for none.
        """


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


def set_shard(param: Any, shard: WeightShard) -> None:
    """Mark `param`, before a Trainer has it, as a shard, or as a placeholder if this worker does not hold it."""
    setattr(param, _ATTRIBUTE, shard)


def shard_of(param: Any) -> Optional[WeightShard]:
    """Return the shard that a parameter is, None for a whole weight."""
    return getattr(param, _ATTRIBUTE, None)


def shards_in(attributes: List[Any]) -> List[Optional[WeightShard]]:
    """Return the shards of parameters, None for whole weights, given the dicts of the parameters' attributes."""
    return list(map(_get_shard, attributes))


def unsharded(params: List[Any]) -> List[Any]:
    """Return the parameters that are whole weights."""
    return [param for param in params if shard_of(param) is None]


def trained_elsewhere(params: List[Any]) -> List[int]:
    """Return the indices of parameters that only other workers train."""
    shards = [(index, shard_of(param)) for index, param in enumerate(params)]
    return [index for index, shard in shards if shard is not None and not shard.holds and shard.grad_req != 'null']


def agreed(param: Any) -> List[Any]:
    """Return the properties of a whole weight that all workers must agree on: grad_req and shape."""
    shard = shard_of(param)
    return [param.grad_req, list(param.shape or ())] if shard is None else [shard.grad_req, list(shard.whole_shape)]


def set_redistributions(param: Any, line: str) -> None:
    """Note a line of text about the redistributions of the network that a parameter belongs to."""
    setattr(param, _REDISTRIBUTIONS, line)


def shards_line(params: List[Any]) -> str:
    """Return lines of text about the shards that this worker holds, and the sums of their gradients.

    Lines about redistributions follow.  The text is empty if nothing is split.
    """
    shards = [(param, shard) for param in params for shard in [shard_of(param)] if shard is not None]
    held = [(param, shard) for param, shard in shards if shard.holds]
    groups = sorted(len(shard.group) for _, shard in held if shard.grad_req != 'null' and len(shard.group) > 1)
    bytes_held, bytes_whole = (sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in shapes)
                               for shapes in ([(param.shape, param.dtype) for param, _ in held],
                                              [(shard.whole_shape, param.dtype) for param, shard in shards]))
    sums = ', '.join('%d among %d workers' % (groups.count(size), size) for size in sorted(set(groups))) or 'none'
    lines = [] if not shards else ['split weights: %d of %d here, %s of %s; gradients that are summed: %s' % (
        len(held), len(shards), size_text(bytes_held), size_text(bytes_whole), sums)]
    redistribution_lines = dict.fromkeys(getattr(param, _REDISTRIBUTIONS, '') for param in params)
    return '\n'.join(lines + list(filter(None, redistribution_lines)))


def refuse_shards(params: List[Any], call: str) -> None:
    """Refuse a call in which a worker alone would take its shard of a weight for the whole weight."""
    sharded = next((param for param in params if shard_of(param) is not None), None)
    if sharded is not None:
        raise InputError('%s: the workers hold shards of %s: use save_parameters, load_parameters or export of the '
                         'network that parallelize returned, or mxhybrid.checkpoint.save and load, which all workers '
                         'call' % (call, sharded.name))


def refuse_move(param: Any, call: str) -> None:
    """Refuse to move a shard from the worker's CPU, where split layers are computed."""
    if shard_of(param) is not None:
        raise InputError('%s: the workers hold shards of %s, whose layers are computed on the CPUs of the workers: '
                         'leave it on the CPU' % (call, param.name))


def set_emptied(param: Any) -> None:
    """Mark a parameter whose values were moved to the shards of other parameters."""
    setattr(param, _EMPTIED, True)


def refuse_emptied(param: Any) -> None:
    """Refuse to use such a parameter."""
    if _EMPTIED in param.__dict__ and not trainers.has_values(param):
        raise InputError('%s no longer has values, since its network was split: use the network that parallelize '
                         'returned, make the Trainer of its collect_params(), and use its for_data() for joint batches '
                         'of another size' % param.name)


def refuse_new_values(param: Any) -> None:
    """Refuse to initialise a shard again, without its initializer and on this worker alone."""
    if shard_of(param) is not None and trainers.has_values(param):
        raise InputError('initialize: %s belongs to a split network: initialise it before parallelize' % param.name)
