"""Micro-batches of a pipeline: their inputs go to the ranks that read them, and their outputs to the ranks that return
them.
"""
from typing import Any, Dict, List, Mapping, Optional, Tuple

import mxnet as mx
import numpy as np

from ...base.errors import InputError
from ...native.arrays import host_view
from ...native.symbols import joined_along
from ..ops.dimension_names import Dimensions
from ..ops.graph import Entry, Factors, Graph, merged_shape
from ..ops.rule import with_range
from ..ops.tracing import TracedNetwork, reshaped
from ..redistribution.redistribution import Redistribution
from ..redistribution.redistribution_operator import Transport
from ..sharding.box import Box, bounding_box, full, overlap
from ..sharding.layout import Layout, Movement, owners
from ..sharding.split import Split
from .network_shards import NetworkShards, OperatorShards


def micro_batch_of(network: TracedNetwork, micro_batches: int) -> TracedNetwork:
    """Return a network for a micro-batch; InputError if the micro-batches do not divide the joint batch."""
    if micro_batches == 1:
        return network
    shapes = []
    for name, axis in network.axes.items():
        shape = list(network.graph.data[name])
        if axis is not None:
            if shape[axis] % micro_batches:
                counts = [count for count in range(1, shape[axis] + 1) if shape[axis] % count == 0]
                raise InputError('plan: %d micro-batches do not divide the joint batch of %d samples: give one of %s'
                                 % (micro_batches, shape[axis], ', '.join(map(str, counts))))
            shape[axis] //= micro_batches
        shapes.append(tuple(shape))
    return reshaped(network, shapes)


def read_boxes(graph: Graph, shards: NetworkShards) -> Dict[Entry, Dict[int, Box]]:
    """Return the box of each input of a network that each rank reads; some ranks read nothing."""
    boxes: Dict[Entry, Dict[int, List[Box]]] = {
        (operator.number, 0): {} for operator in graph.operators
        if operator.op == 'null' and operator.name in graph.data}
    for operator in graph.computing:
        for rank in shards.output_shards[operator.number]:
            for entry, box in zip(operator.inputs, shards.shard(operator, rank).inputs):
                inside = None if box is None or entry not in boxes else overlap(box, full(graph.shapes[entry]))
                if inside is not None:
                    boxes[entry].setdefault(rank, []).append(inside)
    return {entry: {rank: bounding_box(read) for rank, read in by_rank.items()} for entry, by_rank in boxes.items()}


def output_boxes(graph: Graph, dimensions: Dimensions, splits: Mapping[int, Split]) -> Dict[Entry, Dict[int, Box]]:
    """Return the box of each output of a network that each rank computes for the other ranks.

    `dimensions` are those of the joint batch, as a micro-batch of one sample has no dimension of samples; `splits` are
    those of the operators, by number.

    Raises InputError for an output that does not have each sample once, so that outputs of micro-batches cannot be
    joined.
    """
    boxes = {}
    for at, entry in enumerate(graph.heads):
        operator = graph.operators[entry[0]]
        name = 'output %d (%s)' % (at, graph.label(operator))
        axis = dimensions.sample_axis(entry)
        if operator.op == 'null' or entry[0] in graph.fixed:
            raise InputError('plan: pipeline: %s is an input or a weight of the network: leave it out' % name)
        if axis is None or axis.rounds > 1:
            raise InputError('plan: pipeline: %s does not have each sample once, so that outputs of micro-batches '
                             'cannot be joined: return the values of each sample, for example its loss' % name)
        lengths, whole_lengths = ([len(part) for part in factors.get(entry, ())]
                                  for factors in (graph.factors, dimensions.graph.factors))
        if lengths != whole_lengths:
            raise InputError('plan: pipeline: %s has other dimensions for a micro-batch of %d samples than for the '
                             'joint batch: give fewer micro-batches' % (name, graph.shapes[entry][axis.axis]))
        boxes[entry] = {rank: box for box, rank in owners(
            OperatorShards(graph, operator, splits[entry[0]]).layout(entry[1]).boxes).items()}
    return boxes


class Route:
    """A redistribution of an array of a micro-batch, without an operator of a graph.

    Its arrays are made once, so that the engine makes one transfer after the other.
    """

    def __init__(self, transport: Transport, redistribution: Redistribution, is_backward: bool = False):
        source, target = redistribution.shapes[::-1] if is_backward else redistribution.shapes
        transfer = redistribution.backward if is_backward else redistribution.forward
        self._transport, self._transfer = transport, transfer
        # If nothing moves, no buffers are needed.
        self._stays = not transfer.sends and not transfer.receives and source == target and (
            source is None or transfer.local == [(tuple(slice(0, count) for count in source),) * 2])
        self._source, self._target = (None if shape is None or self._stays else mx.nd.empty(
            shape, dtype=redistribution.dtype, ctx=mx.cpu()) for shape in (source, target))
        self._views = [None if array is None else host_view(array) for array in (self._source, self._target)]

    def send(self, array: Any) -> Any:
        """Let the engine make the transfer; return a new array that this rank receives, or None."""
        if self._stays:
            return array
        arrays = [buffer for buffer in (self._source, self._target) if buffer is not None]
        if not arrays or not (self._transfer.sends or self._transfer.receives or self._transfer.local):
            return None if self._target is None else mx.nd.zeros_like(self._target)
        if self._source is not None:
            # The buffer is not in a layout of oneDNN, as the array may be.
            array.copyto(self._source)
        self._transport.push_views(self._transfer, self._views[0], self._views[1], arrays, 0)
        return None if self._target is None else self._target.copy()


class SampleRoutes:
    """The redistributions of one input or output of all micro-batches.

    - `redistributions`: a redistribution for each micro-batch, between this rank's samples of the joint batch and the
      box that it reads or computes.
    - `axis`: the dimension that has the samples; None if each micro-batch reads the whole array.
    - `is_input`: whether this rank sends samples; otherwise it receives them.
    - `factors`: the factors of the dimensions of the array, see :class:`~..ops.graph.Graph`.
    """

    def __init__(self, transport: Transport, redistributions: List[Redistribution], axis: Optional[int], is_input: bool,
                 differentiable: bool = False, factors: Optional[Factors] = None):
        self._axis, self.differentiable, self._factors = axis, differentiable, factors
        self._sides = [redistribution.shapes if is_input else redistribution.shapes[::-1]
                       for redistribution in redistributions]
        #: This rank's samples of each micro-batch, as ranges of the arrays that it takes or returns.
        self._ranges: List[Optional[Tuple[int, int]]] = []
        self._forward: List[Route] = []
        self._backward: List[Route] = []
        position = 0
        for redistribution in redistributions:
            samples = redistribution.source if is_input else redistribution.target
            count = 0 if samples is None or axis is None else samples[axis][1] - samples[axis][0]
            self._ranges.append((position, position + count) if count else None)
            position += count
            self._forward.append(Route(transport, redistribution))
            if differentiable:
                self._backward.append(Route(transport, redistribution, is_backward=True))

    @property
    def computes(self) -> bool:
        """Return whether this rank computes a part of the output of each micro-batch."""
        return self._sides[0][1] is not None

    def _merged(self, array: Any) -> Any:
        """Return an array without factors of its dimensions."""
        if array is None or self._factors is None:
            return array
        return array.reshape(merged_shape(array.shape, self._factors))

    def _factored(self, array: Any, shape: Optional[Tuple[int, ...]]) -> Any:
        """Return an array with the factors of its dimensions."""
        return array if array is None or shape is None or self._factors is None else array.reshape(shape)

    def _pieces(self, array: Any) -> List[Any]:
        """Return this rank's samples of each micro-batch."""
        if self._axis is None:
            return [self._factored(array, side[0]) for side in self._sides]
        shape = next(side[0] for side in self._sides if side[0] is not None)
        count = max(ends[1] for ends in self._ranges if ends is not None)
        array = self._factored(array, shape[:self._axis] + (count,) + shape[self._axis + 1:])
        return [None if ends is None else mx.nd.slice_axis(array, axis=self._axis, begin=ends[0], end=ends[1])
                for ends in self._ranges]

    def distribute(self, array: Any) -> List[Any]:
        """Send this rank's samples of an input; return the part of each micro-batch that it reads."""
        return [self._merged(route.send(piece)) for route, piece in zip(self._forward, self._pieces(array))]

    def collect(self, micro_batch: int, array: Any) -> Any:
        """Send this rank's shard of an output; return its samples of this micro-batch, or None if it has no samples."""
        return self._forward[micro_batch].send(self._factored(array, self._sides[micro_batch][1]))

    def join(self, pieces: List[Any]) -> Any:
        """Return this rank's samples of an output, with a dimension of length 1 in front."""
        own = [piece for piece in pieces if piece is not None]
        assert self._axis is not None
        joined = joined_along(mx.nd, self._axis, own, [piece.shape for piece in own])
        return mx.nd.stack(self._merged(joined), axis=0)

    def send_gradient(self, gradient: Any) -> List[Any]:
        """Send the gradient of this rank's samples of an output; return the gradients of the parts of each micro-batch
        that it has computed.
        """
        return [self._merged(route.send(piece)) for route, piece in zip(self._backward, self._pieces(gradient))]


class RouteMaker:
    """Makes the redistributions of a pipeline's inputs and outputs; the next one has the number `number`."""

    def __init__(self, transport: Transport, rank: int, micro_batches: int, number: int):
        self._transport, self._rank, self._micro_batches, self._number = transport, rank, micro_batches, number

    def of_inputs(self, joint: TracedNetwork, graph: Graph, batch_boxes: Mapping[Entry, Any],
                  read: Mapping[Entry, Dict[int, Box]]) -> Dict[str, SampleRoutes]:
        """Return the redistributions of all inputs by name.

        `batch_boxes` are the boxes of the joint batch that the ranks hold; `read` are the boxes that the stages read.
        """
        routes = {}
        for entry, boxes in batch_boxes.items():
            name = graph.operators[entry[0]].name
            axis, shape = joint.axes[name], graph.shapes[entry]
            redistributions = [self._redistribution(Movement(
                Layout(shape, boxes if axis is None else samples_within(boxes, axis, shape[axis], micro_batch)),
                read[entry], graph.dtypes[entry], differentiable=False), name)
                for micro_batch in range(self._micro_batches)]
            routes[name] = SampleRoutes(self._transport, redistributions, axis, True, factors=graph.factors.get(entry))
        return routes

    def of_outputs(self, graph: Graph, dimensions: Dimensions, computed: Mapping[Entry, Dict[int, Box]],
                   ranges: List[Tuple[int, int]], samples: int) -> List[SampleRoutes]:
        """Return the redistributions of all outputs; `ranges` are the samples of the joint batch that a rank returns,
        and `samples` is their number in a micro-batch.
        """
        routes = []
        for entry in graph.heads:
            axis = dimensions.sample_axis(entry)
            assert axis is not None
            boxes = {at: with_range(full(graph.shapes[entry]), axis.axis, (low * axis.each, high * axis.each))
                     for at, (low, high) in enumerate(ranges)}
            differentiable = bool(np.issubdtype(graph.dtypes[entry], np.floating))
            redistributions = [self._redistribution(Movement(
                Layout(graph.shapes[entry], computed[entry]),
                samples_within(boxes, axis.axis, samples * axis.each, micro_batch), graph.dtypes[entry],
                one_gradient=True, differentiable=differentiable), graph.operators[entry[0]].name)
                for micro_batch in range(self._micro_batches)]
            routes.append(SampleRoutes(self._transport, redistributions, axis.axis, False, differentiable,
                                       graph.factors.get(entry)))
        return routes

    def of_rows(self, ranks: int, width: int) -> Route:
        """Return the redistribution that gives all ranks one row of numbers of each rank."""
        rows: Dict[int, Box] = {at: ((at, at + 1), (0, width)) for at in range(ranks)}
        return Route(self._transport, self._redistribution(Movement(
            Layout((ranks, width), rows), dict.fromkeys(range(ranks), full((ranks, width))), 'float64'), 'rows'))

    def _redistribution(self, movement: Movement, name: str) -> Redistribution:
        self._number += 1
        return Redistribution(self._number - 1, self._rank, movement, name)


def samples_within(boxes: Mapping[int, Box], axis: int, count: int, micro_batch: int) -> Dict[int, Box]:
    """Return the parts of boxes that are in a micro-batch of `count` coordinates along an axis, in its coordinates."""
    parts = {}
    for rank, box in boxes.items():
        low, high = (min(max(end - micro_batch * count, 0), count) for end in box[axis])
        if low < high:
            parts[rank] = with_range(box, axis, (low, high))
    return parts
