"""The operators that are drawn: each module registers entries for one kind of operators."""
from . import detection, layers, outputs, picking, pointwise, products, reducing, shaping, weighted  # noqa: F401
from .registry import ENTRIES

__all__ = ['ENTRIES']
