"""Traced operators of a network, and the rule of each: which input an output's box needs, and what may be split.

Importing the modules of rules registers them.
"""
from . import (  # noqa: F401
    aligned_rules,
    attention_rules,
    copy_rules,
    layer_rules,
    loss_rules,
    shape_rules,
)
