"""Custom operators in Python: each gets the arrays that it needs in its backward pass, whatever other operators need.

MXNet 1.9.1 keeps one set of the positions of arrays with a storage type of their own, that of the last operator that
was put into a graph (operator.py).  It asks for the type of each array at these positions, and fails for an operator
that does not have one of the arrays.  If there are several workers, the others then wait for ever.
"""
from typing import Any

import mxnet as mx


class _EveryPosition:
    """A set of all positions."""

    def __contains__(self, position: int) -> bool:
        return True

    def add(self, position: int) -> None:
        """Do nothing: the position is in the set."""


_EVERY_POSITION = _EveryPosition()
_storage_type = mx.nd.sparse._storage_type


def _known_storage_type(handle: Any) -> int:
    """Return the storage type of an array; that of dense arrays if it has no memory."""
    return max(_storage_type(handle), mx.nd.ndarray._STORAGE_TYPE_DEFAULT)


mx.nd.sparse._storage_type = _known_storage_type
type(mx.operator._registry).result_deps = property(lambda registry: _EVERY_POSITION, lambda registry, positions: None)
