"""Layers as formulas see them: how much weighs what is learned, what comes in and what goes out."""
import dataclasses
from typing import Iterable, List, Sequence, Set, Tuple

import numpy as np

from ...base.errors import InputError
from ...parallel.ops.graph import Graph, Operator

#: What a layer is to the formulas.  ``other`` has weights that are summed over all ranks, and is not split otherwise.
LAYER_KINDS = ('convolution', 'dense', 'other')

#: Of all weights: other parameters with less are taken together.
_SMALL_PART = 0.01


@dataclasses.dataclass(frozen=True)
class LayerSizes:
    """Of a layer with weights.

    Attributes
    ----------
    name : str
    kind : str
        One of :data:`LAYER_KINDS`.
    weights : int
        Numbers that are learned, the bias included; 0 where none are, or an earlier layer has the same ones.
    inputs, outputs : int
        Activations of one sample.
    channels : int
        Ranges, at most, that the outputs can be cut in: output channels.
    rows_in, rows_out : int
        Height of the images that come and go, or what else `cut` names; 1 of what is no convolution.
    halo : int
        Rows of others that a range of rows reads on one side: half the kernel, rounded down.
    first : bool
        Whether nothing before it learns, so that its inputs need no gradient.
    cut : str
        The dimension that has the rows: that of which a range lies together in memory.
    """

    name: str
    kind: str
    weights: int
    inputs: int = 0
    outputs: int = 0
    channels: int = 1
    rows_in: int = 1
    rows_out: int = 1
    halo: int = 0
    first: bool = False
    cut: str = 'height'


def convolution_sizes(name: str, image: Tuple[int, int, int], filters: int, kernel: int, stride: int = 1, pad: int = 0,
                      first: bool = False) -> LayerSizes:
    """Of a convolution with a bias.

    Parameters
    ----------
    name : str
    image : tuple of int
        Channels, height and width of what comes in.
    filters : int
        Channels of what goes out.
    kernel, stride, pad : int
        In both directions.
    first : bool
        See :class:`LayerSizes`.
    """
    channels, height, width = image
    tall, wide = [(size + 2 * pad - kernel) // stride + 1 for size in (height, width)]
    if min(tall, wide, filters, stride) < 1:
        raise InputError('formula: %s has no output: choose a kernel and stride that fit images of %d x %d'
                         % (name, height, width))
    return LayerSizes(name, 'convolution', filters * (channels * kernel * kernel + 1), channels * height * width,
                      filters * tall * wide, filters, height, tall, kernel // 2, first)


def dense_sizes(name: str, inputs: int, outputs: int, first: bool = False) -> LayerSizes:
    """Of a dense layer with a bias, that takes and gives so many numbers a sample."""
    return LayerSizes(name, 'dense', outputs * (inputs + 1), inputs, outputs, outputs, first=first)


#: AlexNet with 1,000 classes and images of 227 x 227, without groups (Krizhevsky et al., NIPS 2012).
ALEXNET = (convolution_sizes('conv1', (3, 227, 227), 96, 11, stride=4, first=True),
           convolution_sizes('conv2', (96, 27, 27), 256, 5, pad=2),
           convolution_sizes('conv3', (256, 13, 13), 384, 3, pad=1),
           convolution_sizes('conv4', (384, 13, 13), 384, 3, pad=1),
           convolution_sizes('conv5', (384, 13, 13), 256, 3, pad=1),
           dense_sizes('fc6', 256 * 6 * 6, 4096), dense_sizes('fc7', 4096, 4096), dense_sizes('fc8', 4096, 1000))


def sizes_of(graph: Graph, batch: int, frozen: Iterable[str] = ()) -> List[LayerSizes]:
    """The convolutions and dense layers of a network in the order in which they run, then, as ``other``, parameters
    that belong to none of them: small ones together.

    Parameters
    ----------
    graph : mxhybrid.parallel.ops.graph.Graph
    batch : int
        Samples of the joint batch that the graph's shapes are of.
    frozen : iterable of str, optional
        Parameters that are not learned.

    Raises
    ------
    InputError
        A batch of less than one sample, or a network without layers and parameters that are learned.
    """
    if batch < 1:
        raise InputError('formula: batch=%r: give the samples of the joint batch' % (batch,))
    fixed = graph.auxiliary.union(frozen)
    parameters = {one.number for one in graph.operators
                  if graph.is_parameter(one.number) and one.name not in fixed}
    learned = set(parameters)
    seen: Set[int] = set()
    found = []
    for one in graph.operators:
        if graph.is_parameter(one.number):
            continue
        if one.op in ('Convolution', 'FullyConnected') and one.number not in graph.fixed:
            own = _parameters(graph, [source for source, _ in one.inputs[1:]]) & parameters
            found.append(_of_operator(graph, one, batch, _count(graph, own - seen), one.inputs[0][0] not in learned))
            seen |= own
        if any(source in learned for source, _ in one.inputs):
            learned.add(one.number)
    found += _others(graph, parameters - seen, sum(one.weights for one in found))
    if not found:
        raise InputError('formula: the network has no parameters that are learned: there is nothing to split')
    return found


def _others(graph: Graph, parameters: Set[int], weights: int) -> List[LayerSizes]:
    total = weights + _count(graph, parameters)
    small = {number for number in parameters if _count(graph, {number}) < _SMALL_PART * total}
    found = [LayerSizes(graph.label(graph.operators[number]), 'other', _count(graph, {number}))
             for number in sorted(parameters - small)]
    return found + [LayerSizes('%d others' % len(small), 'other', _count(graph, small))] * bool(small)


def _of_operator(graph: Graph, one: Operator, batch: int, weights: int, first: bool) -> LayerSizes:
    came, goes = graph.inputs(one)[0], graph.shape(one)
    inputs, outputs = [-(-int(np.prod(shape)) // batch) for shape in (came, goes)]
    if one.op == 'FullyConnected':
        return LayerSizes(graph.label(one), 'dense', weights, inputs, outputs, goes[-1], first=first)
    kernel = one.get('kernel')
    dilate: Sequence[int] = one.get('dilate') or (1,) * len(kernel)
    halo = (kernel[0] - 1) * dilate[0] // 2
    cut = {3: 'width', 4: 'height', 5: 'depth'}[len(goes)]
    return LayerSizes(graph.label(one), 'convolution', weights, inputs, outputs, goes[1], came[2], goes[2], halo, first,
                      cut)


def _parameters(graph: Graph, numbers: Sequence[int]) -> Set[int]:
    """Of an operator's inputs those that are parameters, or computed from some, down to these."""
    found, left = set(), list(numbers)
    while left:
        number = left.pop()
        if graph.is_parameter(number):
            found.add(number)
        elif number in graph.fixed:
            left += [source for source, _ in graph.operators[number].inputs]
    return found


def _count(graph: Graph, parameters: Set[int]) -> int:
    return sum(int(np.prod(graph.shapes[number, 0])) for number in parameters)
