"""Weights of which this worker holds a part only: the store has nothing of them, their gradients are summed by others.

:mod:`mxhybrid.parallel` marks the parameters.  A Trainer's keys stay the same on all workers, for each has every
parameter, if only as a placeholder.
"""
from typing import Any, List, Optional, Protocol

_ATTRIBUTE = 'mxhybrid_part'


class WeightPart(Protocol):
    """A box of a weight, which several workers may hold."""

    #: Of the weight that it is a part of.
    whole_shape: Any
    grad_req: str

    def allreduce_(self, array: Any, priority: int) -> None:
        """Sum a gradient over the workers that hold the same box, in place; returns before the sum is there."""


def set_part(param: Any, part: WeightPart) -> None:
    """From now on `param`, before a Trainer has it, is a part, or a placeholder where this worker holds none."""
    setattr(param, _ATTRIBUTE, part)


def part_of(param: Any) -> Optional[WeightPart]:
    """What a parameter is a part of, None for whole ones."""
    return getattr(param, _ATTRIBUTE, None)


def whole(params: List[Any]) -> List[Any]:
    """Those that are no parts."""
    return [param for param in params if part_of(param) is None]


def agreed(param: Any) -> List[Any]:
    """What all workers agree on of a parameter's whole: how gradients are requested, and the shape."""
    part = part_of(param)
    return [param.grad_req, list(param.shape or ())] if part is None else [part.grad_req, list(part.whole_shape)]
