"""Symbols that many operators read.

MXNet adds up the gradients of a symbol in place where that has many readers (AggregateGradient of its
graph_executor.cc), and operators that write their gradient over what is there lose the others: clip, mean, cumsum and
linalg.gemm2 of MXNet 1.9.1 do, compiled with memory that stays.
"""
import os
from typing import Any, Dict, Tuple

import mxnet as mx


def most_addends() -> int:
    """Return the number of gradients from which on MXNet adds them up in place."""
    return int(os.environ.get('MXNET_EXEC_INPLACE_GRAD_SUM_CAP', 8))


class Readers:
    """Gives symbols to so few readers each that their gradients are summed apart: further ones read a copy."""

    def __init__(self) -> None:
        #: A last one is the next copy.
        self._most = max(1, most_addends() - 2)
        self._given: Dict[int, Tuple[Any, Any, int]] = {}

    def give(self, symbol: Any) -> Any:
        """Return what one more reader of a symbol reads."""
        _, source, count = self._given.get(id(symbol), (symbol, symbol, 0))
        if count == self._most:
            source, count = mx.sym.identity(source), 0
        self._given[id(symbol)] = symbol, source, count + 1  # the symbol stays, or another one could have its id
        return source
