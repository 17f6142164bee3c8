"""Sizes of layers for the formulas: numbers of weights, inputs and outputs."""
import dataclasses
from typing import Iterable, List, Sequence, Set, Tuple

import numpy as np

from ...base.errors import InputError
from ...parallel.ops.graph import Graph, Operator
from ...parallel.ops.registry import rule_of

#: Other parameters with less than this share of all weights are taken together.
_SMALL_PART = 0.01


@dataclasses.dataclass(frozen=True)
class LayerSizes:
    """The sizes of a layer with weights."""

    name: str
    #: 'convolution', 'dense', or 'other': weights that are summed over all ranks, and can only be split by samples.
    kind: str
    #: Trained values, the bias included; 0 if there are none, or if an earlier layer has the same ones.
    weights: int
    #: Activations of one sample.
    inputs: int = 0
    outputs: int = 0
    #: Output channels: the maximal number of ranges that the outputs can be split into.
    channels: int = 1
    #: Extent of inputs and outputs along the dimension `cut`, that is the height of images; 1 for other layers.
    rows_in: int = 1
    rows_out: int = 1
    #: Rows of a neighbour that a range of rows reads on one side: half of the kernel, rounded down.
    halo: int = 0
    #: True if nothing before the layer is trained: then its inputs need no gradient.
    first: bool = False
    #: The dimension of the rows: the one whose ranges are contiguous in memory.
    cut: str = 'height'


def convolution_sizes(name: str, image: Tuple[int, int, int], filters: int, kernel: int, stride: int = 1, pad: int = 0,
                      first: bool = False) -> LayerSizes:
    """Return the sizes of a convolution with a bias.

    - `image`: channels, height and width of the input.
    - `filters`: channels of the output.
    - `kernel`, `stride`, `pad`: in both directions.
    - `first`: see :class:`LayerSizes`.
    """
    channels, height, width = image
    tall, wide = [(size + 2 * pad - kernel) // stride + 1 for size in (height, width)]
    if min(tall, wide, filters, stride) < 1:
        raise InputError('%s: the layer has no output: choose a kernel and stride that fit images of %d x %d'
                         % (name, height, width))
    return LayerSizes(name, 'convolution', filters * (channels * kernel * kernel + 1), channels * height * width,
                      filters * tall * wide, filters, height, tall, kernel // 2, first)


def dense_sizes(name: str, inputs: int, outputs: int, first: bool = False) -> LayerSizes:
    """Return the sizes of a dense layer with a bias; `inputs` and `outputs` are per sample."""
    return LayerSizes(name, 'dense', outputs * (inputs + 1), inputs, outputs, outputs, first=first)


#: AlexNet with 1,000 classes and images of 227 x 227, without groups (Krizhevsky et al., NIPS 2012).
ALEXNET = (convolution_sizes('conv1', (3, 227, 227), 96, 11, stride=4, first=True),
           convolution_sizes('conv2', (96, 27, 27), 256, 5, pad=2),
           convolution_sizes('conv3', (256, 13, 13), 384, 3, pad=1),
           convolution_sizes('conv4', (384, 13, 13), 384, 3, pad=1),
           convolution_sizes('conv5', (384, 13, 13), 256, 3, pad=1),
           dense_sizes('fc6', 256 * 6 * 6, 4096), dense_sizes('fc7', 4096, 4096), dense_sizes('fc8', 4096, 1000))


def layer_sizes(graph: Graph, batch: int, frozen: Iterable[str] = ()) -> List[LayerSizes]:
    """Return the sizes of a network's layers: convolutions and dense layers in the order in which they run, then, as
    ``other``, the parameters of all other layers, small ones together.

    Parameters
    ----------
    graph : mxhybrid.parallel.ops.graph.Graph
    batch : int
        Samples of the joint batch for which the graph was traced.
    frozen : iterable of str, optional
        Parameters that are not trained.

    Raises
    ------
    InputError
        The batch has less than one sample, or the network has no trained parameters.
    """
    if batch < 1:
        raise InputError('batch=%r: give the samples of the joint batch' % (batch,))
    untrained = graph.auxiliary.union(frozen)
    parameters = {operator.number for operator in graph.operators
                  if graph.is_parameter(operator.number) and operator.name not in untrained}
    with_gradients = set(parameters)
    counted: Set[int] = set()
    layers = []
    for operator in graph.operators:
        if graph.is_parameter(operator.number):
            continue
        if rule_of(operator).layer_kind and operator.number not in graph.fixed:
            own = _parameters(graph, [source for source, _ in operator.inputs[1:]]) & parameters
            layers.append(_of_operator(graph, operator, batch, _count(graph, own - counted),
                                       operator.inputs[0][0] not in with_gradients))
            counted |= own
        if any(source in with_gradients for source, _ in operator.inputs):
            with_gradients.add(operator.number)
    layers += _others(graph, parameters - counted, sum(layer.weights for layer in layers))
    if not layers:
        raise InputError('net: the network has no trained parameters: give one with layers that learn')
    return layers


def _others(graph: Graph, parameters: Set[int], weights: int) -> List[LayerSizes]:
    total = weights + _count(graph, parameters)
    small = {number for number in parameters if _count(graph, {number}) < _SMALL_PART * total}
    large = [LayerSizes(graph.label(graph.operators[number]), 'other', _count(graph, {number}))
             for number in sorted(parameters - small)]
    return large + [LayerSizes('%d others' % len(small), 'other', _count(graph, small))] * bool(small)


def _of_operator(graph: Graph, operator: Operator, batch: int, weights: int, first: bool) -> LayerSizes:
    input_shape, output_shape, label = graph.inputs(operator)[0], graph.shape(operator), graph.label(operator)
    inputs, outputs = [-(-int(np.prod(shape)) // batch) for shape in (input_shape, output_shape)]
    if rule_of(operator).layer_kind == 'dense':
        return LayerSizes(label, 'dense', weights, inputs, outputs, output_shape[-1], first=first)
    kernel = operator.get('kernel')
    dilate: Sequence[int] = operator.get('dilate') or (1,) * len(kernel)
    halo = (kernel[0] - 1) * dilate[0] // 2
    cut = {3: 'width', 4: 'height', 5: 'depth'}[len(output_shape)]
    return LayerSizes(label, 'convolution', weights, inputs, outputs, output_shape[1], input_shape[2], output_shape[2],
                      halo, first, cut)


def _parameters(graph: Graph, numbers: Sequence[int]) -> Set[int]:
    """Return the parameters among an operator's inputs, and those that such inputs are computed from."""
    parameters, pending = set(), list(numbers)
    while pending:
        number = pending.pop()
        if graph.is_parameter(number):
            parameters.add(number)
        elif number in graph.fixed:
            pending += [source for source, _ in graph.operators[number].inputs]
    return parameters


def _count(graph: Graph, parameters: Set[int]) -> int:
    return sum(int(np.prod(graph.shapes[number, 0])) for number in parameters)
