"""The rules of operators, one module for each family; importing the modules registers them.

To add the rule of an operator:

1. Derive a class of :class:`mxhybrid.parallel.ops.rule.Rule`, or of a class in these modules, and decorate it with
   ``@register('name')``.  `splittable` says which dimensions of the first output can be split, `shard` which box of
   each input a shard reads.  Set the attributes and override the methods with which the planner estimates, searches and
   times the operator, if the defaults are wrong: all of them are in :class:`~mxhybrid.parallel.ops.rule.Rule`.
2. Add a new module to the imports below.
3. Add the operator to the table in ``docs/parallel.md``, and to the networks of
   ``tests/parallel/layouts/test_split_networks.py``, which compare random splits with one process.
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
