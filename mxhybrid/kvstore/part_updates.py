"""When weights are updated of which workers hold parts: each as soon as its own gradient is there, after exchanges.

MXNet's sgd updates four weights in one operation, which waits for the last of their gradients.  Where a network is
split, backward waits for other workers again and again.  Meanwhile a large weight can be updated whose gradient is
there, if the exchange that backward has come to begins first.
"""
from typing import Any, ContextManager, List, Sequence, Tuple

import numpy as np

from ..native.engine import write_after
from ..native.trainers import with_updaters

#: Bytes of a weight from which on it is updated by itself: an operation more takes as long as the update of so many.
LARGE_BYTES = 1 << 18


def updating_parts(trainer: Any) -> ContextManager[None]:
    """Around an update in this worker of weights that are split."""
    return with_updaters(trainer, _LargeByThemselves)


class _LargeByThemselves:
    """Stands in for an ``Updater`` of MXNet's."""

    def __init__(self, updater: Any):
        self._updater = updater

    def __call__(self, keys: Sequence[Any], gradients: Sequence[Any], weights: Sequence[Any]) -> None:
        small: List[Tuple[Any, Any, Any]] = []
        # Those of the last layers have their gradients first.
        for one in reversed(list(zip(keys, gradients, weights))):
            key, gradient, weight = one
            if gradient.stype == 'default' and weight.size * np.dtype(weight.dtype).itemsize >= LARGE_BYTES:
                _after_exchanges(gradient)
                self._updater([key], [gradient], [weight])
            else:
                small.append(one)
        if small:
            self._updater(*map(list, zip(*reversed(small))))


def _after_exchanges(gradient: Any) -> None:
    """What has become ready together with a gradient, as an exchange behind the same part of backward, is begun before
    whatever reads the gradient from now on: the engine's queue gets that later.
    """
    write_after([], [gradient])
