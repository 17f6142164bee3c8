"""Empties the processor's caches before something is timed, as a network does in training.

A network computes before each step.  It reads and writes so much memory that neither the weights and their gradients
nor the code and the objects of the script are in a cache afterwards; then a script takes up to twice as long.
"""
from typing import Any, Callable

import mxnet as mx

#: Bytes of an array that is larger than the caches of a core, and than its share of those that cores have in common.
_EVICTING_BYTES = 1 << 26


class CacheEviction:
    """Fills all caches of a core with other data, as a network does that computes."""

    def __init__(self) -> None:
        self._data: Any = mx.nd.zeros(_EVICTING_BYTES // 4, ctx=mx.cpu())

    def run(self) -> None:
        """Read and write the data, and wait."""
        mx.nd.waitall()
        self._data += 1
        mx.nd.waitall()

    def after(self, action: Callable[[], None]) -> Callable[[], None]:
        """Return a function that calls `action`, and fills the caches."""
        def act_and_evict() -> None:
            action()
            self.run()
        return act_and_evict
