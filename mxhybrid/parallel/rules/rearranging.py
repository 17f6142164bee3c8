"""The rules of operators that move the elements of blocks of images into channels, and back."""
import math
from typing import List

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule, as_tuple
from ..sharding.box import full
from ..sharding.split import OutputShard
from .windows import window


@register('depth_to_space', 'space_to_depth')
class Blocks(Rule):
    """depth_to_space and space_to_depth: samples, height and width can be split, for depth_to_space in whole blocks."""

    moves_dimensions = True

    def grains(self, graph: Graph, operator: Operator) -> List[int]:
        """Return the size of a block for height and width, if the output has whole blocks."""
        size = int(operator.get('block_size')) if operator.op == 'depth_to_space' else 1
        return [1, 1, size, size]

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        return [True, False, True, True]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        data, shape, out = graph.inputs(operator)[0], graph.shape(operator), output_shard.box
        rows, columns = ((low * read // count, high * read // count)
                         for (low, high), read, count in zip(out[2:], data[2:], shape[2:]))
        return OperatorShard([(out[0], (0, data[1]), rows, columns)], [out])


@register('im2col')
class ImagesToColumns(Rule):
    """im2col: samples, input channels and whole rows of windows can be split."""

    splits_every_dimension = True
    moves_dimensions = True

    @staticmethod
    def _sizes(graph: Graph, operator: Operator) -> List[List[int]]:
        """Return kernel, stride, padding, dilation and number of windows of each dimension of images."""
        data = graph.inputs(operator)[0]
        count = len(data) - 2
        sizes = [as_tuple(operator.get(key), count, default) for key, default in
                 (('kernel', 1), ('stride', 1), ('pad', 0), ('dilate', 1))]
        return [[kernel, stride, pad, dilate, (length + 2 * pad - dilate * (kernel - 1) - 1) // stride + 1]
                for length, kernel, stride, pad, dilate in zip(data[2:], *sizes)]

    def grains(self, graph: Graph, operator: Operator) -> List[int]:
        """Return the elements of a window for the channels, and the windows of a row for the windows."""
        kernels, *_, windows = zip(*self._sizes(graph, operator))
        return [1, math.prod(kernels), math.prod(windows[1:])]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        data, out, sizes = graph.inputs(operator)[0], output_shard.box, self._sizes(graph, operator)
        _, channel_size, row_size = self.grains(graph, operator)
        kernel, stride, pad, dilate, windows = sizes[0]
        rows, pad_left = window((out[2][0] // row_size, out[2][1] // row_size), data[2], windows, kernel, stride, pad,
                                dilate)
        channels = out[1][0] // channel_size, out[1][1] // channel_size
        pads = (pad_left,) + tuple(size[2] for size in sizes[1:])
        return OperatorShard([(out[0], channels, rows) + full(data[3:])], [out], {'pad': pads})


@register('col2im')
class ColumnsToImages(Rule):
    """col2im: samples and channels can be split."""

    moves_dimensions = True

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        return [at < 2 for at in range(len(graph.shape(operator)))]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        data, shape, out = graph.inputs(operator)[0], graph.shape(operator), output_shard.box
        window_size = data[1] // shape[1]
        return OperatorShard([(out[0], (out[1][0] * window_size, out[1][1] * window_size), (0, data[2]))], [out])
