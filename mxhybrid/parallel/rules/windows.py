"""The windows of images that convolutions and pooling read, and the padding beyond the borders."""
from typing import Tuple

from ..ops.graph import Operator
from ..sharding.box import Range


def window(out: Range, count: int, out_count: int, kernel: int, stride: int, pad: int, dilate: int = 1
           ) -> Tuple[Range, int]:
    """Return the range that some outputs read in one dimension, padding included, and the padding that is left to
    do.
    """
    if out == (0, out_count):
        return (0, count), pad
    return (out[0] * stride - pad, (out[1] - 1) * stride - pad + dilate * (kernel - 1) + 1), 0


def is_channels_first(operator: Operator) -> bool:
    """Tell whether images have their channels in dimension 1."""
    return str(operator.get('layout', 'NC')).startswith('NC')
