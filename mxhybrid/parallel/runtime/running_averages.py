"""Running averages that backward passes update, as those of MXNet's BatchNorm.

MXNet's BatchNorm updates its averages in its backward pass, calls of a layer from the last to the first.  In graphs
with ``static_alloc`` MXNet's engine knows nothing of that: an exchange would put an update off, until after a read.
The engine knows of gradients.  So each running average has an input of its own, whose gradient is the next value of
the average, and is written to the array of the average.
"""
from typing import Any, List, NamedTuple, Sequence, Tuple

import mxnet as mx
import numpy as np

from ...lane.norm_operators import NextAverage, is_compiled, next_averages


class Updated(NamedTuple):
    """A running average of a layer, and what goes into it.

    Attributes
    ----------
    following : Symbol
        The input whose gradient is its next value.
    average : Symbol
        The input that it is itself.
    calls : list of tuple
        What each call computes, without a gradient, and its momentum.
    dtype : numpy.dtype
    channels : int
    """

    following: Any
    average: Any
    calls: Sequence[Tuple[Any, float]]
    dtype: Any
    channels: int

    def factors(self) -> List[float]:
        """Of the average that is there before, and of what each call computes."""
        share, found = 1.0, []
        for _, momentum in self.calls:
            kept = np.float32(momentum)  # as MXNet has it
            found.append(share * float(1 - kept))
            share *= float(kept)
        return [share] + found


def updates_of(averages: Sequence[Updated]) -> List[Any]:
    """Make outputs of a graph without a meaning; backward passes compute next averages, whatever the loss is."""
    compiled, found = [], []
    for one in averages:
        if one.dtype == 'float32' and is_compiled():
            compiled.append(NextAverage(one.following, one.average, [value for value, _ in one.calls], one.factors(),
                                        one.channels))
        else:
            found.append(_by_operators(one))
    if compiled:
        found.append(next_averages(compiled))
    return found


def _by_operators(one: Updated) -> Any:
    """By operators of MXNet's: `MakeLoss` has a gradient of ones."""
    kept, *factors = one.factors()
    return mx.sym.MakeLoss(mx.sym.add_n(one.following * one.average * kept, *[
        one.following * mx.sym.cast(value, one.dtype) * factor for (value, _), factor in zip(one.calls, factors)]))
