"""Rules of layers with weights, convolutions, dense layers, embeddings, normalisation, recurrent layers; and pooling.
"""
import math
from typing import Any, Dict, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..sharding.box import Box, Range, full, shape_of
from ..sharding.split import PartPlace
from .collective_ops import JointBatchNorm
from .graph import Graph, Operator
from .registry import register
from .rule import OperatorPart, Rule, as_tuple, axis_of, elements_of, summed, with_range


def window(out: Range, count: int, out_count: int, kernel: int, stride: int, pad: int, dilate: int = 1
           ) -> Tuple[Range, int]:
    """What a range of outputs reads in one dimension, which may be padding, and the padding that is left to do."""
    if out == (0, out_count):
        return (0, count), pad
    return (out[0] * stride - pad, (out[1] - 1) * stride - pad + dilate * (kernel - 1) + 1), 0


def is_channels_first(one: Operator) -> bool:
    """Whether images have their channels in dimension 1."""
    return str(one.get('layout', 'NC')).startswith('NC')


@register('Convolution')
class Convolution(Rule):
    """Samples, output channels, and every dimension of images; addends are ranges of input channels."""

    layer_kind = 'convolution'
    is_searched = splits_weight = adds_weight_gradients = True
    makes_blocked = makes_images = True

    def flop(self, one: Operator, part: OperatorPart) -> float:
        """Return a multiplication and an addition for each element of a filter, for each output."""
        return 2.0 * elements_of(part.outputs[:one.outputs]) * _filter_size(part)

    def grains(self, graph: Graph, one: Operator) -> List[int]:
        """Channels of a group stay together, as far as each part needs whole groups of input channels."""
        shape = graph.shape(one)
        groups = int(one.get('num_group', 1))
        return [1, shape[1] // groups if groups > 1 else 1] + [1] * (len(shape) - 2)

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """All of them where the layout is known."""
        first = is_channels_first(one)
        return [True] + [first] * (len(graph.shape(one)) - 1)

    def addends(self, graph: Graph, one: Operator) -> int:
        """Input channels, without groups."""
        return graph.inputs(one)[0][1] if is_channels_first(one) and int(one.get('num_group', 1)) == 1 else 1

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """As :meth:`Rule.part`."""
        out, shape = place.box, graph.shape(one)
        data, weight = graph.inputs(one)[:2]
        if not is_channels_first(one):
            return OperatorPart([(out[0],) + full(data[1:])] + [full(other) for other in graph.inputs(one)[1:]], [out])
        count = len(data) - 2
        kernel = as_tuple(one.get('kernel'), count, 1)
        strides, pads = as_tuple(one.get('stride'), count, 1), as_tuple(one.get('pad'), count, 0)
        dilates = as_tuple(one.get('dilate'), count, 1)
        groups = int(one.get('num_group', 1))
        per_group = shape[1] // groups
        channels = out[1]
        if groups == 1:
            read = summed(data[1], place)
            weights: Box = (channels, read) + full(weight[2:])
            own_groups = 1
        else:
            first, last = channels[0] // per_group, channels[1] // per_group
            each = data[1] // groups
            read, own_groups = (first * each, last * each), last - first
            weights = (channels,) + full(weight[1:])
        windows = [window(*one_dimension) for one_dimension in
                   zip(out[2:], data[2:], shape[2:], kernel, strides, pads, dilates)]
        attrs = {'num_filter': channels[1] - channels[0], 'num_group': own_groups,
                 'pad': tuple(pad for _, pad in windows)}
        image: Box = (out[0], read) + tuple(one_range for one_range, _ in windows)
        return _with_bias(one, [image, weights], channels, place, attrs)


def _filter_size(part: OperatorPart) -> float:
    weight = part.inputs[1]
    assert weight is not None
    return float(math.prod(shape_of(weight)[1:]))


@register('FullyConnected')
class FullyConnected(Rule):
    """All dimensions; addends are ranges of inputs."""

    layer_kind = 'dense'
    is_searched = splits_weight = adds_weight_gradients = True

    def flop(self, one: Operator, part: OperatorPart) -> float:
        """Return a multiplication and an addition for each input, for each output."""
        weight = part.inputs[1]
        assert weight is not None
        return 2.0 * elements_of(part.outputs[:one.outputs]) * shape_of(weight)[-1]

    @staticmethod
    def _flattens(one: Operator) -> bool:
        return bool(one.get('flatten', True))

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """All."""
        return [True] * len(graph.shape(one))

    def addends(self, graph: Graph, one: Operator) -> int:
        """Inputs; those that come from one channel stay together."""
        data = graph.inputs(one)[0]
        return data[1] if self._flattens(one) else data[-1]

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """As :meth:`Rule.part`."""
        out = place.box
        data, weight = graph.inputs(one)[:2]
        if self._flattens(one):
            inner = weight[1] // data[1]
            read = summed(data[1], place)
            image: Box = (out[0], read) + full(data[2:])
            columns = (read[0] * inner, read[1] * inner)
        else:
            columns = summed(data[-1], place)
            image = out[:-1] + (columns,)
        return _with_bias(one, [image, (out[-1], columns)], out[-1], place, {'num_hidden': out[-1][1] - out[-1][0]})


def _with_bias(one: Operator, boxes: List[Any], channels: Range, place: PartPlace, attrs: Any) -> OperatorPart:
    """One of several addends has the bias."""
    if len(one.inputs) == 3:
        boxes.append((channels,) if place.addend == 0 else None)
        if place.addend:
            attrs['no_bias'] = True
    return OperatorPart(boxes, [place.box], attrs)


@register('Pooling')
class Pooling(Rule):
    """Samples, channels, and every dimension of images that is not pooled as a whole; where whole images are summed or
    averaged, addends are ranges of the first of these.
    """

    keeps_blocked = makes_images = True

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """All where each output reads a window."""
        shape = graph.shape(one)
        windows = not one.get('global_pool', False) and is_channels_first(one) and self._is_plain(one)
        return [True, is_channels_first(one)] + [windows] * (len(shape) - 2)

    @staticmethod
    def _is_plain(one: Operator) -> bool:
        kind = one.get('pool_type', 'max')
        return kind == 'max' or kind == 'avg' and one.get('count_include_pad', True) is True and \
            one.get('pooling_convention', 'valid') == 'valid'

    @staticmethod
    def _adds(graph: Graph, one: Operator) -> bool:
        """Whether all of an image is summed or averaged."""
        data, kind = graph.inputs(one)[0], one.get('pool_type', 'max')
        count = len(data) - 2
        return kind in ('avg', 'sum') and is_channels_first(one) and (bool(one.get('global_pool', False)) or (
            as_tuple(one.get('kernel'), count, 1) == tuple(data[2:]) and not any(as_tuple(one.get('pad'), count, 0))))

    def addends(self, graph: Graph, one: Operator) -> int:
        """Rows of images."""
        return graph.inputs(one)[0][2] if self._adds(graph, one) else 1

    def following(self, graph: Graph, one: Operator, degrees: Tuple[int, ...]) -> Optional[Tuple[Tuple[int, ...], int]]:
        """As :meth:`Rule.following`; sums of the parts of images are addends."""
        own, addends = degrees[:2] + (1,) * (len(degrees) - 2), int(np.prod(degrees[2:]))
        if addends > 1 and addends <= self.addends(graph, one) and self._within(graph, one, own):
            return own, addends
        return super().following(graph, one, degrees)

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """As :meth:`Rule.part`."""
        out, data, shape = place.box, graph.inputs(one)[0], graph.shape(one)
        if not is_channels_first(one):
            return OperatorPart([(out[0],) + full(data[1:])], [out])
        if place.addends > 1:
            scale = 1 / int(np.prod(data[2:])) if one.get('pool_type') == 'avg' else 1.0

            def build(inputs: List[Any], name: str, attributes: Any) -> Any:
                return mx.sym.sum(inputs[0], axis=tuple(range(2, len(data))), keepdims=True) * scale
            return OperatorPart([out[:2] + (summed(data[2], place),) + full(data[3:])], [out], build=build)
        if one.get('global_pool', False) or out[2:] == full(shape[2:]):
            return OperatorPart([out[:2] + full(data[2:])], [out])
        count = len(data) - 2
        kernel = as_tuple(one.get('kernel'), count, 1)
        strides, pads = as_tuple(one.get('stride'), count, 1), as_tuple(one.get('pad'), count, 0)
        fill = float('-inf') if one.get('pool_type', 'max') == 'max' else 0.0
        if one.get('pooling_convention', 'valid') == 'valid':
            windows = [window(*each) for each in zip(out[2:], data[2:], shape[2:], kernel, strides, pads)]
            attrs: Dict[str, Any] = {'pad': tuple(pad for _, pad in windows)}
        else:  # what rounding up makes be read beyond the image is there as padding
            windows = [window(each[0], each[1], -1, *each[2:])
                       for each in zip(out[2:], data[2:], kernel, strides, pads)]
            attrs = {'pad': (0,) * count, 'pooling_convention': 'valid'}
        return OperatorPart([out[:2] + tuple(one_range for one_range, _ in windows)], [out], attrs, [fill])


@register('BatchNorm')
class BatchNorm(Rule):
    """Channels; everything else, too, where statistics are summed (:mod:`mxhybrid.parallel.ops.collective_ops`)."""

    alone = True
    adds_weight_gradients = keeps_blocked = has_statistics = True
    collective = JointBatchNorm

    def averages(self, one: Operator) -> Sequence[int]:
        """Return the inputs of mean and variance, unless the operator normalises by these."""
        return () if one.get('use_global_stats', False) else (3, 4)

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """All."""
        return [True] * len(graph.shape(one))

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """As :meth:`Rule.part`."""
        channels = place.box[axis_of(one, len(place.box), 1)]
        return OperatorPart([place.box] + [(channels,)] * 4, [place.box])


@register('Embedding')
class Embedding(Rule):
    """Ids in every dimension, and columns; addends are ranges of rows, of which a part has those ids that are its own.
    """

    is_searched = splits_weight = adds_weight_gradients = True
    index_input = 0

    def index_limit(self, graph: Graph, one: Operator) -> Optional[int]:
        """Return the number of rows."""
        return graph.inputs(one)[1][0]

    def flop(self, one: Operator, part: OperatorPart) -> float:
        """Return the number of elements that are copied."""
        return float(elements_of(part.outputs[:one.outputs]))

    def elements_moved(self, one: Operator, part: OperatorPart) -> int:
        """Return the elements of the rows that are read, not those of the table, and of the outputs."""
        return 2 * elements_of(part.outputs[:one.outputs])

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """All, but gradients that are row_sparse keep their rows whole."""
        return [True] * (len(graph.shape(one)) - 1) + [not one.get('sparse_grad', False)]

    def addends(self, graph: Graph, one: Operator) -> int:
        """Rows."""
        return 1 if one.get('sparse_grad', False) else graph.inputs(one)[1][0]

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """As :meth:`Rule.part`."""
        out, rows = place.box, graph.inputs(one)[1][0]
        own = summed(rows, place)
        attrs = {'output_dim': out[-1][1] - out[-1][0], 'input_dim': own[1] - own[0]}
        if place.addends == 1:
            return OperatorPart([out[:-1], (own, out[-1])], [out], attrs)

        def build(inputs: List[Any], name: str, attributes: Any) -> Any:
            ids = shifted_indices(inputs[0], graph.dtypes[one.inputs[0]], own)
            found = mx.sym.Embedding(mx.sym.clip(ids, 0, own[1] - own[0] - 1), inputs[1], name=name, **attributes)
            mask = mx.sym.broadcast_like(mx.sym.expand_dims(inside(ids, own, rows), axis=-1), found)
            return mx.sym.where(mask, found, mx.sym.zeros_like(found))  # a product with infinity would not be 0
        return OperatorPart([out[:-1], (own, out[-1])], [out], attrs, build=build)


def shifted_indices(indices: Any, dtype: Any, own: Range) -> Any:
    """Indices less ``own[0]``, which may be negative: not of a type that has no room for that."""
    if dtype.itemsize < 4:
        indices = mx.sym.cast(indices, 'float32' if dtype.kind == 'f' else 'int32')
    return indices - own[0]


def inside(shifted: Any, own: Range, count: int) -> Any:
    """1 where an index less ``own[0]`` is in the range `own` of `count`, else 0; what is beyond counts as an end."""
    mask = shifted * 0 + 1
    if own[0] > 0:
        mask = mask * (shifted >= 0)
    if own[1] < count:
        mask = mask * (shifted < own[1] - own[0])
    return mask


@register('RNN')
class Recurrent(Rule):
    """The fused layer, over samples: everything else of it is whole."""

    is_searched = adds_weight_gradients = True

    def flop(self, one: Operator, part: OperatorPart) -> float:
        """Return a multiplication and an addition for each weight, for each time of each sample."""
        data, weights = part.inputs[:2]
        assert data is not None and weights is not None
        return 2.0 * math.prod(shape_of(data)[:2]) * elements_of([weights])

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """Data is (time, samples, features)."""
        return [False, True, False]

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """As :meth:`Rule.part`."""
        samples, shapes = place.box[1], graph.inputs(one)
        states: List[Box] = [((0, shape[0]), samples) + full(shape[2:]) if len(shape) == 3 else (samples,)
                             for shape in shapes[2:]]
        boxes: List[Box] = [((0, shapes[0][0]), samples, (0, shapes[0][2])), full(shapes[1])] + states
        return OperatorPart(boxes, [((0, graph.shape(one, output)[0]), samples) + full(graph.shape(one, output)[2:])
                            for output in range(one.outputs)])


@register('LayerNorm')
class LayerNorm(Rule):
    """Whatever is not normalised."""

    adds_weight_gradients = True

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """All but the axis."""
        shape = graph.shape(one)
        return [place != axis_of(one, len(shape), -1) for place in range(len(shape))]

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """As :meth:`Rule.part`."""
        statistics = with_range(place.box, axis_of(one, len(place.box), -1), (0, 1))
        return OperatorPart([place.box] + [full(shape) for shape in graph.inputs(one)[1:]],
                            [place.box] + [statistics] * (one.outputs - 1))


@register('BilinearSampler', 'SpatialTransformer', 'Correlation')
@register('LRN', 'InstanceNorm', 'GroupNorm', 'Pad', 'Crop', 'im2col', 'col2im', 'depth_to_space', 'space_to_depth',
          'GridGenerator', '_contrib_AdaptiveAvgPooling2D', '_contrib_BilinearResize2D', inputs_with_samples=1)
class SamplesOnly(Rule):
    """Dimension 0 of all outputs and of the inputs that have samples: of all, or of as many as are given; others, as
    weights, are whole.
    """

    inputs_with_samples: Optional[int] = None

    def _with_samples(self, one: Operator) -> int:
        """How many inputs have samples."""
        return len(one.inputs) if self.inputs_with_samples is None else self.inputs_with_samples

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """The first."""
        return [place == 0 for place in range(len(graph.shape(one)))]

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """As :meth:`Rule.part`."""
        count = self._with_samples(one)
        return OperatorPart([(place.box[0],) + full(shape[1:]) if at < count else full(shape)
                             for at, shape in enumerate(graph.inputs(one))],
                    [(place.box[0],) + full(graph.shape(one, output)[1:]) for output in range(one.outputs)])


@register('Deconvolution', inputs_with_samples=1)
class Deconvolution(SamplesOnly):
    """Samples."""

    is_searched = splits_weight = adds_weight_gradients = makes_images = True

    def flop(self, one: Operator, part: OperatorPart) -> float:
        """Return a multiplication and an addition for each element of a filter, for each input."""
        return 2.0 * elements_of(part.inputs[:1]) * _filter_size(part)


@register('UpSampling')
class UpSampling(SamplesOnly):
    """Images that are made larger, several of them side by side; one of them where a weight does it."""

    def _with_samples(self, one: Operator) -> int:
        return 1 if one.get('sample_type') == 'bilinear' else len(one.inputs)
