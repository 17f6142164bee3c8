"""Updates each large sharded weight as soon as its own gradient is computed.

MXNet's sgd updates four weights in one operation, which waits for the last of their gradients.  The backward pass of a
split network waits for other workers again and again.  Meanwhile a large weight whose gradient is ready can be updated,
provided that the redistribution that backward has reached begins before the update.
"""
from functools import partial
from typing import Any, ContextManager, List, Sequence, Tuple

import numpy as np

from ..native.engine import write_after
from ..native.trainers import with_updaters

#: Size in bytes from which on a weight is updated alone: its update takes as long as a further operation.
LARGE_BYTES = 1 << 18


def updating_eagerly(trainer: Any) -> ContextManager[None]:
    """Surround an update of sharded weights in this worker."""
    return with_updaters(trainer, lambda updater: partial(_update, updater))


def _update(updater: Any, keys: Sequence[Any], gradients: Sequence[Any], weights: Sequence[Any]) -> None:
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
