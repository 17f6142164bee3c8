"""Shapes of the parameters of image models, layer by layer, in the order of Gluon's model zoo."""
from typing import List, Tuple

Shape = Tuple[int, ...]


def _convolution(shapes: List[Shape], filters: int, channels: int, kernel: Tuple[int, int]) -> int:
    """Append the shapes of a convolution and of its batch normalisation."""
    shapes.append((filters, channels) + kernel)
    shapes += [(filters,), (filters,)]  # gamma and beta; running means and variances have no gradient
    return filters


def resnet50(classes: int = 1000) -> List[Shape]:
    """ResNet-50 (He et al. 2015, table 1)."""
    shapes: List[Shape] = []
    channels = _convolution(shapes, 64, 3, (7, 7))
    for blocks, filters in ((3, 256), (4, 512), (6, 1024), (3, 2048)):
        for block in range(blocks):
            inner = filters // 4
            _convolution(shapes, inner, channels, (1, 1))
            _convolution(shapes, inner, inner, (3, 3))
            _convolution(shapes, filters, inner, (1, 1))
            if block == 0:
                _convolution(shapes, filters, channels, (1, 1))
            channels = filters
    return shapes + [(classes, channels), (classes,)]


def inception_v3(classes: int = 1000) -> List[Shape]:
    """Inception-v3 without its auxiliary head (Szegedy et al. 2015, table 1)."""
    shapes: List[Shape] = []

    def chain(channels: int, *layers: Tuple[int, Tuple[int, int]]) -> int:
        for filters, kernel in layers:
            channels = _convolution(shapes, filters, channels, kernel)
        return channels

    def fork(channels: int) -> int:
        """1x3 and 3x1 side by side."""
        return chain(channels, (384, (1, 3))) + chain(channels, (384, (3, 1)))

    point, three, five = (1, 1), (3, 3), (5, 5)
    channels = chain(3, (32, three), (32, three), (64, three), (80, point), (192, three))
    for pool in (32, 64, 64):
        channels = (chain(channels, (64, point)) + chain(channels, (48, point), (64, five))
                    + chain(channels, (64, point), (96, three), (96, three)) + chain(channels, (pool, point)))
    channels += chain(channels, (384, three)) + chain(channels, (64, point), (96, three), (96, three))
    for width in (128, 160, 160, 192):
        row, column = (1, 7), (7, 1)
        channels = (chain(channels, (192, point)) + chain(channels, (width, point), (width, row), (192, column))
                    + chain(channels, (width, point), (width, column), (width, row), (width, column), (192, row))
                    + chain(channels, (192, point)))
    channels += (chain(channels, (192, point), (320, three))
                 + chain(channels, (192, point), (192, (1, 7)), (192, (7, 1)), (192, three)))
    for _ in range(2):
        channels = (chain(channels, (320, point)) + fork(chain(channels, (384, point)))
                    + fork(chain(channels, (448, point), (384, three))) + chain(channels, (192, point)))
    return shapes + [(classes, channels), (classes,)]
