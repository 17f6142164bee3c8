"""Keeps MXNet from losing gradients of a symbol that many operators read.

MXNet adds up the gradients of a symbol in place if it has many readers (AggregateGradient of its graph_executor.cc).
Operators that overwrite the array instead of adding to it lose the gradients of the other readers: clip, mean, cumsum
and linalg.gemm2 of MXNet 1.9.1 do so with ``static_alloc``.
"""
import os
from typing import Any, Dict, Tuple

import mxnet as mx


def sum_in_place_cap() -> int:
    """Return the lowest number of gradients that MXNet adds up in place."""
    return int(os.environ.get('MXNET_EXEC_INPLACE_GRAD_SUM_CAP', 8))


class Readers:
    """Gives a symbol to few readers, so that MXNet does not add up their gradients in place; further ones read a
    copy.
    """

    def __init__(self) -> None:
        #: The most readers of a symbol besides its next copy, so that MXNet does not add up their gradients in place.
        self._most = max(1, sum_in_place_cap() - 2)
        #: By the id of a symbol: the symbol, the symbol or copy that its next reader gets, and the readers of that.
        self._reader_counts: Dict[int, Tuple[Any, Any, int]] = {}

    def give(self, symbol: Any) -> Any:
        """Return the symbol, or a copy of it, for one more reader."""
        _, source, count = self._reader_counts.get(id(symbol), (symbol, symbol, 0))
        if count == self._most:
            source, count = mx.sym.identity(source), 0
        # The symbol is kept, or another one could have its id.
        self._reader_counts[id(symbol)] = symbol, source, count + 1
        return source
