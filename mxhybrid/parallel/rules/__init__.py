"""The rules of operators, one module for each family; importing the modules registers them.

CONTRIBUTING.md explains how to add the rule of an operator.
"""
from . import (  # noqa: F401
    aligned,
    attention,
    batch_norm,
    convolution,
    dense,
    detection,
    elementwise,
    indexing,
    joining,
    losses,
    normalization,
    padding,
    pooling,
    products,
    rearranging,
    reduction,
    repetition,
    reshape,
    resizing,
    sequences,
    slicing,
    softmax,
    transposed,
)
