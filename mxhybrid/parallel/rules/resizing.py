"""The rules of operators that give images other sizes by sums of neighbouring elements, weighted by distance.

MXNet's operators can only resize whole images.  So a shard of a part of an image computes, for each dimension that is
split, a matrix of weights from the coordinates, and multiplies its part by these matrices.
"""
import math
from typing import Any, List, Tuple

import mxnet as mx
import numpy as np

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, shape_only, summed
from ..sharding.box import Range, full
from ..sharding.split import OutputShard
from .pooling import ImageSums


class _Resizing(ImageSums):
    """An operator on images whose output elements are weighted sums of a window of rows and columns."""

    splits_every_dimension = True

    def _window(self, operator: Operator, out: Range, count: int, out_count: int) -> Range:
        """Return the rows that some rows of the output read."""
        raise NotImplementedError

    def _weights(self, operator: Operator, rows: Any, columns: Any, count: int, out_count: int) -> Any:
        """Return the weight of each input coordinate, in columns, for each output coordinate, in rows."""
        raise NotImplementedError

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        out, shape, data = output_shard.box, graph.shape(operator), graph.inputs(operator)[0]
        dtype = str(graph.dtypes[operator.number, 0])
        is_cut = [out[at] != (0, shape[at]) for at in range(4)]
        reads = [self._window(operator, out[at], data[at], shape[at]) if at > 1 and is_cut[at] else
                 out[at] if at < 2 else (0, data[at]) for at in range(4)]

        def matrix(axis: int) -> Any:
            rows, columns = (mx.sym.arange(*side, dtype='float64') for side in (out[axis], reads[axis]))
            weights = self._weights(operator, mx.sym.reshape(rows, shape=(1, -1)),
                                    mx.sym.reshape(columns, shape=(-1, 1)), data[axis], shape[axis])
            return mx.sym.cast(weights, dtype)

        def build(inputs: List[Any], name: str, attributes: Any) -> Any:
            wide = mx.sym.dot(inputs[0], matrix(3))
            high = mx.sym.dot(mx.sym.swapaxes(wide, 2, 3), matrix(2))
            return mx.sym.swapaxes(high, 2, 3, name=name)
        build_whole = None
        if len(operator.inputs) > 1:  # another input gives the size
            def build_whole(inputs: List[Any], name: str, attributes: Any) -> Any:
                return mx.sym.contrib.BilinearResize2D(inputs[0], height=shape[2], width=shape[3], mode='size',
                                                       align_corners=bool(operator.get('align_corners', True)),
                                                       name=name)
        return OperatorShard([tuple(reads), *shape_only(graph, operator)], [out],
                             build=build if any(is_cut[2:]) else build_whole)


@register('_contrib_BilinearResize2D')
class BilinearResize(_Resizing):
    """BilinearResize2D: every dimension can be split; a shard reads the rows and columns between which it
    interpolates.
    """

    @staticmethod
    def _coordinates(operator: Operator, count: int, out_count: int) -> Tuple[float, float]:
        """Return the scale of input coordinates, and the shift that is added before and subtracted after scaling.

        MXNet rounds scale and coordinates to float32 for every type (area_pixel_compute_source_index of
        bilinear_resize.cc).
        """
        aligned = bool(operator.get('align_corners', True))
        sizes = (count - 1, out_count - 1) if aligned else (count, out_count)
        return float(np.float32(sizes[0]) / np.float32(sizes[1])) if out_count > 1 else 0.0, 0.0 if aligned else 0.5

    def _window(self, operator: Operator, out: Range, count: int, out_count: int) -> Range:
        """Return the rows, see :meth:`_Resizing._window`; rounding may need one more on either side."""
        scale, shift = self._coordinates(operator, count, out_count)
        first, last = (min(max((at + shift) * scale - shift, 0.0), count - 1.0) for at in (out[0], out[1] - 1))
        return max(0, math.floor(first - 1e-3)), min(count, math.floor(last + 1e-3) + 2)

    def _weights(self, operator: Operator, rows: Any, columns: Any, count: int, out_count: int) -> Any:
        """Return the weights, see :meth:`_Resizing._weights`: one less the distance, where that is below one."""
        scale, shift = self._coordinates(operator, count, out_count)
        sources = mx.sym.clip(mx.sym.cast((rows + shift) * scale - shift, 'float32'), 0.0, count - 1.0)
        return mx.sym.relu(1.0 - mx.sym.abs(mx.sym.broadcast_sub(mx.sym.cast(sources, 'float64'), columns)))


@register('_contrib_AdaptiveAvgPooling2D')
class AdaptivePooling(_Resizing):
    """AdaptiveAvgPooling2D: every dimension can be split; where whole images are averaged, partial sums cover ranges of
    their rows.
    """

    def partials(self, graph: Graph, operator: Operator) -> int:
        """Return the number of rows of an image, if whole images are averaged."""
        return graph.inputs(operator)[0][2] if graph.shape(operator)[2:] == (1, 1) else 1

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        if output_shard.partials == 1:
            return super().shard(graph, operator, output_shard)
        data = graph.inputs(operator)[0]

        def build(inputs: List[Any], name: str, attributes: Any) -> Any:
            return mx.sym.sum(inputs[0], axis=(2, 3), keepdims=True, name=name) / (data[2] * data[3])
        box = output_shard.box[:2] + (summed(data[2], output_shard),) + full(data[3:])
        return OperatorShard([box], [output_shard.box], build=build)

    def _window(self, operator: Operator, out: Range, count: int, out_count: int) -> Range:
        return out[0] * count // out_count, -(-out[1] * count // out_count)

    def _weights(self, operator: Operator, rows: Any, columns: Any, count: int, out_count: int) -> Any:
        """Return the weights of an average (START_IND and END_IND of adaptive_avg_pooling-inl.h)."""
        first, last = mx.sym.floor(rows * count / out_count), mx.sym.ceil((rows + 1) * count / out_count)
        inside = mx.sym.broadcast_greater_equal(columns, first) * mx.sym.broadcast_lesser(columns, last)
        return mx.sym.broadcast_div(inside, last - first)
