"""The rules of operators that look elements up by indices."""
from typing import Any, List, Optional, Sequence, Tuple

import mxnet as mx

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule, axis_length, axis_of, elements_of, summed
from ..sharding.box import Box, Range, shape_of
from ..sharding.sample_axis import SampleAxis
from ..sharding.split import OutputShard
from .aligned import Aligned, Alignment


@register('Embedding')
class Embedding(Rule):
    """Embedding: every dimension of the ids and the columns can be split; partial sums cover ranges of rows, and a
    shard looks up the ids of its own range.
    """

    is_searched = splits_weight = adds_weight_gradients = True
    index_input = 0

    def index_limit(self, graph: Graph, operator: Operator) -> Optional[int]:
        """Return the number of rows."""
        return graph.inputs(operator)[1][0]

    def flop(self, operator: Operator, shard: OperatorShard) -> float:
        return float(elements_of(shard.outputs[:operator.outputs]))

    def elements_moved(self, operator: Operator, shard: OperatorShard) -> int:
        """Return the elements of the rows that are read, not of the table, and those of the outputs."""
        return 2 * elements_of(shard.outputs[:operator.outputs])

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        """Return True for every dimension; a table with row_sparse gradients keeps its rows whole."""
        return [True] * (len(graph.shape(operator)) - 1) + [not operator.get('sparse_grad', False)]

    def partials(self, graph: Graph, operator: Operator) -> int:
        """Return the number of rows."""
        return 1 if operator.get('sparse_grad', False) else graph.inputs(operator)[1][0]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        out, rows = output_shard.box, graph.inputs(operator)[1][0]
        row_range = summed(rows, output_shard)
        attrs = {'output_dim': out[-1][1] - out[-1][0], 'input_dim': row_range[1] - row_range[0]}
        if output_shard.partials == 1:
            return OperatorShard([out[:-1], (row_range, out[-1])], [out], attrs)

        def build(inputs: List[Any], name: str, attributes: Any) -> Any:
            ids = shifted_indices(inputs[0], graph.dtypes[operator.inputs[0]], row_range)
            ids_within = mx.sym.clip(ids, 0, row_range[1] - row_range[0] - 1)
            looked_up = mx.sym.Embedding(ids_within, inputs[1], name=name, **attributes)
            mask = mx.sym.broadcast_like(mx.sym.expand_dims(inside(ids, row_range, rows), axis=-1), looked_up)
            return mx.sym.where(mask, looked_up, mx.sym.zeros_like(looked_up))  # a product with infinity would not be 0
        return OperatorShard([out[:-1], (row_range, out[-1])], [out], attrs, build=build)


@register('pick')
class Pick(Rule):
    """pick: every dimension of the output can be split; partial sums cover ranges of the axis that is picked from."""

    index_input = 1
    sums_last_dimension = True

    def index_limit(self, graph: Graph, operator: Operator) -> Optional[int]:
        return axis_length(graph, operator, -1)

    def summed_axes(self, graph: Graph, operator: Operator) -> List[Tuple[int, int]]:
        return [(0, axis_of(operator, len(graph.inputs(operator)[0]), -1))]

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        shape = graph.inputs(operator)[0]
        axis = axis_of(operator, len(shape), -1)
        return [not operator.get('keepdims', False) or at != axis for at in range(len(graph.shape(operator)))]

    def partials(self, graph: Graph, operator: Operator) -> int:
        """Return the length of the axis; 1 where MXNet wraps indices beyond it instead of clipping them."""
        shape = graph.inputs(operator)[0]
        return 1 if operator.get('mode', 'clip') != 'clip' else shape[axis_of(operator, len(shape), -1)]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        data, index = graph.inputs(operator)
        axis = axis_of(operator, len(data), -1)
        keeps = bool(operator.get('keepdims', False))
        others = output_shard.box[:axis] + output_shard.box[axis + 1:] if keeps else output_shard.box
        own_range = summed(data[axis], output_shard)
        boxes: List[Optional[Box]] = [others[:axis] + (own_range,) + others[axis:],
                                      others if len(index) < len(data) else others[:axis] + ((0, 1),) + others[axis:]]
        if output_shard.partials == 1:
            return OperatorShard(boxes, [output_shard.box])

        def build(inputs: List[Any], name: str, attributes: Any) -> Any:
            shifted = shifted_indices(inputs[1], graph.dtypes[operator.inputs[1]], own_range)
            shifted_within = mx.sym.clip(shifted, 0, own_range[1] - own_range[0] - 1)
            looked_up = mx.sym.pick(inputs[0], shifted_within, name=name, **attributes)
            # Indices may have the shape of the output, or one more dimension.
            mask = mx.sym.reshape_like(inside(shifted, own_range, data[axis]), looked_up)
            return mx.sym.where(mask, looked_up, mx.sym.zeros_like(looked_up))  # a product with infinity would not be 0
        return OperatorShard(boxes, [output_shard.box], build=build)


@register('one_hot')
class OneHot(Aligned):
    """one_hot: every dimension of the indices can be split."""

    index_input = 0

    def index_limit(self, graph: Graph, operator: Operator) -> Optional[int]:
        """Return the number of classes."""
        return int(operator.get('depth'))

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        return [[*range(len(graph.inputs(operator)[0]))]]


@register('take')
class Take(Aligned):
    """take: slices of the first input; the dimensions of the indices replace the axis."""

    index_input = 1

    def elements_moved(self, operator: Operator, shard: OperatorShard) -> int:
        """Return the elements of the slices that are read, not of all slices, and those of indices and outputs."""
        return 2 * elements_of(shard.outputs[:1]) + elements_of(shard.inputs[1:])

    def index_limit(self, graph: Graph, operator: Operator) -> Optional[int]:
        return axis_length(graph, operator, 0)

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        data, indices = (len(shape) for shape in graph.inputs(operator))
        axis = axis_of(operator, data, 0)
        return [[None if at == axis else at + (indices - 1) * (at > axis) for at in range(data)],
                [axis + at for at in range(indices)]]


@register('batch_take')
class BatchTake(Aligned):
    """batch_take: an element of each row.  MXNet has no gradient of this operator, and fails if it is requested."""

    index_input = 1

    def index_limit(self, graph: Graph, operator: Operator) -> Optional[int]:
        return axis_length(graph, operator, 1)

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        data, indices = (len(shape) for shape in graph.inputs(operator))
        return [[0, None], [0]] if indices == 1 else [[None] * data, [None] * indices]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        """Return a shard without a gradient, which a redistribution of its output would request."""
        shard = super().shard(graph, operator, output_shard)
        shard.build = lambda inputs, name, attributes: mx.sym.BlockGrad(mx.sym.batch_take(*inputs), name=name)
        return shard


@register('gather_nd')
class GatherElements(Aligned):
    """gather_nd: the dimensions of the indices, and those of the data that no index names, can be split; the others are
    read whole.
    """

    index_input = 1

    def index_limit(self, graph: Graph, operator: Operator) -> Optional[int]:
        """Return the shortest of the lengths that indices name."""
        data, indices = graph.inputs(operator)
        return min(data[:indices[0]])

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        data, indices = graph.inputs(operator)
        named, count = indices[0], len(indices) - 1
        return [[None if at < named else count + at - named for at in range(len(data))], [None, *range(count)]]

    def samples(self, graph: Graph, operator: Operator, known: Sequence[Optional[SampleAxis]]
                ) -> List[Optional[SampleAxis]]:
        """Return the sample axis of the indices, if they have one: these may name the samples of the data by number.
        """
        indices, named = known[1], graph.inputs(operator)[1][0]
        data = known[0] if known[0] is None or known[0].axis >= named else None
        if data is None and indices is not None and indices.axis > 0:
            return [indices._replace(axis=indices.axis - 1)]
        return super().samples(graph, operator, [data, indices])


@register('scatter_nd')
class ScatterElements(Aligned):
    """scatter_nd: the dimensions that no index names can be split."""

    index_input = 1

    def index_limit(self, graph: Graph, operator: Operator) -> Optional[int]:
        """Return the shortest of the lengths that indices name."""
        return min(graph.shape(operator)[:graph.inputs(operator)[1][0]])

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        indices = graph.inputs(operator)[1]
        whole: Alignment = [None] * len(indices)
        return [[*whole[1:], *range(indices[0], len(graph.shape(operator)))], whole]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        shard = super().shard(graph, operator, output_shard)
        shard.attrs = {'shape': shape_of(output_shard.box)}
        return shard


@register('_contrib_index_copy')
class CopyRows(Aligned):
    """index_copy: every dimension but that of the rows can be split."""

    index_input = 1

    def index_limit(self, graph: Graph, operator: Operator) -> Optional[int]:
        return axis_length(graph, operator, 0)

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        others: Alignment = [None, *range(1, len(graph.shape(operator)))]
        return [others, [None], others]


def shifted_indices(indices: Any, dtype: Any, index_range: Range) -> Any:
    """Return indices less ``index_range[0]``, in a type that has room for negative numbers."""
    if dtype.itemsize < 4:
        indices = mx.sym.cast(indices, 'float32' if dtype.kind == 'f' else 'int32')
    return indices - index_range[0]


def inside(shifted: Any, index_range: Range, count: int) -> Any:
    """Return 1 for each index, less ``index_range[0]``, that is in `index_range`, else 0.

    The ranges cover `count` indices. Indices below 0 belong to the first range, and indices beyond `count` to the last.
    """
    mask = shifted * 0 + 1
    if index_range[0] > 0:
        mask = mask * (shifted >= 0)
    if index_range[1] < count:
        mask = mask * (shifted < index_range[1] - index_range[0])
    return mask
