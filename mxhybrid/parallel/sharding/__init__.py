"""Boxes of arrays, and how ranks hold the boxes of a tensor: layouts, splits of operators, layouts of weights."""
