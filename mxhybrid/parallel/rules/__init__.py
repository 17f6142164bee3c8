"""The rules of operators, one module for each family; importing the modules registers them.

CONTRIBUTING.md explains how to add the rule of an operator.
"""
from . import (  # noqa: F401
    aligned,
    attention,
    batch_norm,
    batch_only,
    convolution,
    dense,
    detection,
    elementwise,
    group_norm,
    indexing,
    joining,
    layer_norm,
    local_response,
    losses,
    padding,
    pooling,
    products,
    random_like,
    rearranging,
    reduction,
    repetition,
    reshape,
    resizing,
    sequences,
    shapes,
    slicing,
    softmax,
    transposed,
)
