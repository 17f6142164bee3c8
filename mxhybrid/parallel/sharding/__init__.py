"""Boxes of tensors, and the ranks that hold them: layouts, splits of operators, layouts of weights."""
