"""The windows of images that convolutions and pooling read, and the padding beyond the borders."""
from typing import Tuple

from ..ops.graph import Operator
from ..sharding.box import Range


def window(out: Range, count: int, out_count: int, kernel: int, stride: int, pad: int, dilate: int = 1
           ) -> Tuple[Range, int]:
    """Return the range that some outputs read in one dimension, padding included, and the padding left to do."""
    if out == (0, out_count):
        return (0, count), pad
    return (out[0] * stride - pad, (out[1] - 1) * stride - pad + dilate * (kernel - 1) + 1), 0


def is_channels_first(operator: Operator) -> bool:
    """Return whether images have their channels in dimension 1."""
    return str(operator.get('layout', 'NC')).startswith('NC')


def transposed_window(out: Range, count: int, kernel: int, stride: int, pad: int, dilate: int = 1) -> Tuple[Range, int]:
    """Return the range of inputs that some outputs of a transposed convolution read, and the position of the first
    output among those that the inputs make without padding.

    Input i adds to the outputs from ``i * stride`` to ``i * stride + dilate * (kernel - 1)``, before `pad` outputs are
    cut off.  Where an output lies after all of them, one more input, which may lie beyond the tensor, makes room.
    """
    low, high, reach = out[0] + pad, out[1] - 1 + pad, dilate * (kernel - 1)
    first = max(0, min(-((reach - low) // stride), low // stride))
    last = high // stride
    if last >= count and (count - 1) * stride + reach >= high:
        last = count - 1
    elif last * stride + reach < high:
        last += 1
    first = min(first, last)
    return (first, last + 1), low - first * stride
