"""Weights of which this worker holds a part only: the store has nothing of them, their gradients are summed by others.

:mod:`mxhybrid.parallel` marks the parameters.  A Trainer's keys stay the same on all workers, for each has every
parameter, if only as a placeholder.
"""
from typing import Any, Callable, Iterator, List, Optional, Protocol, Tuple

import numpy as np

from ..base.errors import InputError
from ..base.text import size_text
from ..native import trainers

_ATTRIBUTE = 'mxhybrid_part'
#: How the job monitor knows a call of a network that is split and has exchanges.
NETWORK_CALL = 'a call of a network that is split'
#: Of a parameter of a network that is split: what there is to say of its exchanges.
_EXCHANGES = 'mxhybrid_exchanges'
#: Of a whole parameter whose values are parts now.
_LEFT = 'mxhybrid_left'


class WeightPart(Protocol):
    """A box of a weight, which several workers may hold."""

    #: Of the weight that it is a part of.
    whole_shape: Any
    grad_req: str
    #: Whether this worker has any of it; ranks of the workers that have the same box.
    holds: bool
    group: List[int]

    def allreduce_(self, array: Any, priority: int) -> None:
        """Sum a gradient over the workers that hold the same box, in place; returns before the sum is there."""

    def whole_of(self, shape: Tuple[int, ...]) -> Tuple[Tuple[int, ...], Any]:
        """Shape of the whole of an array that this worker keeps beside its box, as optimizers do, and the range of each
        dimension that it has of that.  It has an element for each of the box, or for each of its rows; any other array
        is whole already, and the same on all workers.  InputError where that is not to be told.
        """

    def gather(self, array: Any, shape: Tuple[int, ...], dtype: Any) -> Iterator[np.ndarray]:
        """Rows of a whole array, piece by piece, on worker 0 alone, of what workers have of it, None for nothing.

        All workers iterate over it until it ends, and change nothing of their arrays until worker 0 is done.
        """

    def scatter(self, rows: Callable[[int, int], np.ndarray], array: Any, shape: Tuple[int, ...], dtype: Any) -> None:
        """Overwrite what workers have of a whole array, None for nothing, with worker 0's, which asks for it as
        ``rows(first, last)`` (collective).
        """


#: Optimizers of MXNet's whose update of an element depends on others, of the weight or of other weights, or is drawn.
_NOT_BY_ELEMENT = ('LARS', 'LAMB', 'LANS', 'LBSGD', 'SGLD', 'Nadam', 'GroupAdaGrad')


def check_optimizer(optimizer: Any) -> None:
    """InputError for one that would update parts otherwise than the whole."""
    name = type(optimizer).__name__
    if name in _NOT_BY_ELEMENT:
        raise InputError('%s updates elements by norms of whole weights, or by other weights, of which workers hold '
                         'parts: take an optimizer that updates element by element, as sgd or adam, or a plan that '
                         'splits no weights' % name)


def set_part(param: Any, part: WeightPart) -> None:
    """From now on `param`, before a Trainer has it, is a part, or a placeholder where this worker holds none."""
    setattr(param, _ATTRIBUTE, part)


def part_of(param: Any) -> Optional[WeightPart]:
    """What a parameter is a part of, None for whole ones."""
    return getattr(param, _ATTRIBUTE, None)


def whole(params: List[Any]) -> List[Any]:
    """Those that are no parts."""
    return [param for param in params if part_of(param) is None]


def held_elsewhere(params: List[Any]) -> List[int]:
    """Places of those that are trained, but by other workers alone."""
    parts = [(place, part_of(param)) for place, param in enumerate(params)]
    return [place for place, part in parts if part is not None and not part.holds and part.grad_req != 'null']


def agreed(param: Any) -> List[Any]:
    """What all workers agree on of a parameter's whole: how gradients are requested, and the shape."""
    part = part_of(param)
    return [param.grad_req, list(param.shape or ())] if part is None else [part.grad_req, list(part.whole_shape)]


def set_exchanges(param: Any, line: str) -> None:
    """What there is to say of the exchanges of the network that a parameter belongs to, if any."""
    setattr(param, _EXCHANGES, line)


def parts_line(params: List[Any]) -> str:
    """What a worker holds of weights that are split, and how many of their gradients are summed by how many workers;
    on a line below what it sends in exchanges.  '' where nothing is split.
    """
    parts = [(param, part) for param in params for part in [part_of(param)] if part is not None]
    held = [(param, part) for param, part in parts if part.holds]
    groups = sorted(len(part.group) for _, part in held if part.grad_req != 'null' and len(part.group) > 1)
    bytes_held, bytes_whole = (sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in shapes)
                               for shapes in ([(param.shape, param.dtype) for param, _ in held],
                                              [(part.whole_shape, param.dtype) for param, part in parts]))
    sums = ', '.join('%d among %d workers' % (groups.count(size), size) for size in sorted(set(groups))) or 'none'
    lines = [] if not parts else ['split weights: %d of %d here, %s of %s; gradients that are summed: %s' % (
        len(held), len(parts), size_text(bytes_held), size_text(bytes_whole), sums)]
    return '\n'.join(lines + list(filter(None, dict.fromkeys(getattr(param, _EXCHANGES, '') for param in params))))


def refuse_parts(params: List[Any], call: str) -> None:
    """InputError where a worker by itself would take its part of a weight for the whole."""
    part = next((param for param in params if part_of(param) is not None), None)
    if part is not None:
        raise InputError('%s: the workers hold parts of %s: use save_parameters, load_parameters or export of what '
                         'parallelize returned, or mxhybrid.checkpoint.save and load, which all workers call'
                         % (call, part.name))


def refuse_move(param: Any, call: str) -> None:
    """InputError where a part would leave its worker's CPU, with which the layers are planned."""
    if part_of(param) is not None:
        raise InputError('%s: the workers hold parts of %s, whose layers are split over workers with one CPU each: '
                         'leave it there' % (call, param.name))


def set_left(param: Any) -> None:
    """A whole parameter has lost its values, for parts of them are in others."""
    setattr(param, _LEFT, True)


def refuse_left(param: Any) -> None:
    """InputError where such a parameter would be used."""
    if _LEFT in param.__dict__ and not trainers.has_values(param):
        raise InputError('%s has no values any more, its network was split: use what parallelize returned, make the '
                         'Trainer of its collect_params(), and take its for_data() for joint batches of another size'
                         % param.name)


def refuse_new_values(param: Any) -> None:
    """InputError where a part would be initialised anew, without its initializer and by this worker alone."""
    if part_of(param) is not None and trainers.has_values(param):
        raise InputError('initialize: %s is part of a network that is split: initialise it before parallelize'
                         % param.name)
