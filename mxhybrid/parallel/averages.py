"""Running averages that backward passes update, as those of MXNet's BatchNorm.

MXNet's BatchNorm updates its averages in its backward pass, calls of a layer from the last to the first.  In graphs
with ``static_alloc`` MXNet's engine knows nothing of that: an exchange would put an update off, until after a read.  The
engine knows of gradients.  So each running average has an input of its own, whose gradient is the next value of the
average, and is written to the array of the average.
"""
from typing import Any, List, Tuple

import mxnet as mx
import numpy as np

from ..lane.norm_operators import is_compiled, next_average


def update_of(following: Any, average: Any, calls: List[Tuple[Any, float]], dtype: Any, count: int) -> Any:
    """Make the output of a graph that gives `following` its gradient, whatever the loss is; it has no other meaning.

    Calls of the layer are symbols of what they compute, without a gradient, and momenta.  The backward pass reads the
    average that is there then.
    """
    share, factors = 1.0, []
    for _, momentum in calls:
        kept = np.float32(momentum)  # as MXNet has it
        factors.append(share * float(1 - kept))
        share *= float(kept)
    values = [value for value, _ in calls]
    if dtype == 'float32' and is_compiled():
        return next_average(mx.sym.identity(following), average, values, (share, *factors), count)
    # MakeLoss has a gradient of ones.
    return mx.sym.MakeLoss(mx.sym.add_n(following * average * share, *[
        following * mx.sym.cast(value, dtype) * factor for value, factor in zip(values, factors)]))
