"""Running averages that backward passes update, like those of MXNet's BatchNorm.

MXNet's BatchNorm updates its averages in its backward pass, calls of a layer from the last to the first.  In graphs
with ``static_alloc``, MXNet's engine does not track that: a redistribution could delay an update until after a read.
The engine does track gradients.  So each running average has an input of its own, whose gradient is the next value of
the average, and is written to the array of the average.
"""
from typing import Any, List, NamedTuple, Sequence, Tuple, Union

import mxnet as mx
import numpy as np

from ...kernels.library import compiled
from ...kernels.operators import NextAverage, Statistics, next_averages

#: The mean or variance of a call of a layer, without a gradient: a symbol with an element for each channel, or a part
#: of an array.
Statistic = Union[Any, Statistics]


class Updated(NamedTuple):
    """A running average of a layer, and the statistics that update it."""

    #: The input whose gradient is its next value.
    following: Any
    #: The input that has its present value.
    average: Any
    #: For each call: its statistics, through which no gradient flows, and its momentum.
    calls: Sequence[Tuple[Statistic, float]]
    dtype: Any
    channels: int

    def factors(self) -> List[float]:
        """Return the factors of the previous average and of the statistics of each call."""
        share, factors = 1.0, []
        for _, momentum in self.calls:
            rounded = np.float32(momentum)  # as in MXNet
            factors.append(share * float(1 - rounded))
            share *= float(rounded)
        return [share] + factors


def updates_of(averages: Sequence[Updated]) -> List[Any]:
    """Return outputs of a graph whose backward passes compute the next averages; their values have no meaning."""
    in_one_operator, outputs = [], []
    for updated in averages:
        if updated.dtype == 'float32' and compiled() is not None:
            values = [value if isinstance(value, Statistics) else Statistics(value, updated.channels)
                      for value, _ in updated.calls]
            in_one_operator.append(NextAverage(updated.following, updated.average, values, updated.factors(),
                                               updated.channels))
        else:
            outputs.append(_by_operators(updated))
    if in_one_operator:
        outputs.append(next_averages(in_one_operator))
    return outputs


def _by_operators(updated: Updated) -> Any:
    """Return an output by operators of MXNet: `MakeLoss` has a gradient of ones."""
    share, *factors = updated.factors()
    return mx.sym.MakeLoss(mx.sym.add_n(updated.following * updated.average * share, *[
        updated.following * mx.sym.cast(symbol_of(value, updated.channels), updated.dtype) * factor
        for (value, _), factor in zip(updated.calls, factors)]))


def symbol_of(value: Statistic, channels: int) -> Any:
    """Return a statistic as a symbol."""
    if not isinstance(value, Statistics):
        return value
    return mx.sym.slice_axis(value.array, axis=0, begin=value.offset, end=value.offset + channels)
