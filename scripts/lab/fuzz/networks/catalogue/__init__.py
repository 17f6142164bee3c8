"""The operators that are drawn, and the operators that are not, with the reason.

=============  ==========================================================================================
module         contents
=============  ==========================================================================================
`registry`     the table of entries
`pointwise`    elementwise operators, and what draws numbers elementwise
`shaping`      operators that move values about
`picking`      operators that choose values by ids, sort them or search
`reducing`     sums, norms, softmaxes
`layers`       layers of gluon, called once or several times
`weighted`     operators with weights and windows
`products`     products of matrices, linalg, attention
`outputs`      output operators and losses
`detection`    boxes and regions
`absent`       operators that are not drawn
=============  ==========================================================================================
"""
from . import detection, layers, outputs, picking, pointwise, products, reducing, shaping, weighted  # noqa: F401
from .registry import ENTRIES

__all__ = ['ENTRIES']
