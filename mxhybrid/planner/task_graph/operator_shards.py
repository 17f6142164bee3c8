"""The shards of operators, as arrays.

Operators of the same shapes share them, and splits that differ in their ranks only share the boxes.
"""
import itertools
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ...parallel.ops.graph import Graph, Operator
from ...parallel.ops.registry import rule_of
from ...parallel.ops.rule import OperatorShard
from ...parallel.sharding.box import Box, full, shape_of
from ...parallel.sharding.split import OutputShard, Split
from .redistribution import RankBoxes, box_array
from .task_builder import TaskSubgraph

_IDS = itertools.count()


class InnerRedistribution(NamedTuple):
    """The data that the shards of an operator exchange while it computes."""

    #: A box for each shard.
    held: np.ndarray
    needed: np.ndarray
    #: Bytes of an element.
    itemsize: int


class _ShardBoxes(NamedTuple):
    """The boxes of an input or an output."""

    #: The shards that have one, in the order of the split's ranks.
    positions: np.ndarray
    #: Their boxes.
    boxes: np.ndarray


class OperatorShards:
    """The shards of an operator, split by some degrees, whatever the ranks.

    Only arrays are kept, not the objects that they were made of: many objects take memory, and the garbage collector
    time.

    - `fills`: the value of each input beyond the borders of the tensor.
    - `output_bytes`: by shard, in the order of the split's ranks.
    - `different`: one shard of each kind; shards of different kinds may take different times.
    - `kinds`: by shard: the index of its kind in `different`.
    - `inner`: the data that shards exchange; None if they exchange none.
    """

    def __init__(self, graph: Graph, operator: Operator, split: Split):
        rule = rule_of(operator)
        output_shards = list(split.shards(graph.shape(operator), rule.grains(graph, operator)).values())
        shard_of: Dict[OutputShard, OperatorShard] = {}
        for output_shard in output_shards:
            if output_shard not in shard_of:
                shard_of[output_shard] = rule.shard(graph, operator, output_shard)
        shards = [shard_of[output_shard] for output_shard in output_shards]
        self.inputs = [_shard_boxes([shard.inputs[index] for shard in shards])
                       for index in range(len(operator.inputs))]
        self.outputs = [_shard_boxes([shard.outputs[index] for shard in shards]) for index in range(operator.outputs)]
        self.fills = shards[0].fills
        self.output_bytes = np.zeros(len(shards))
        for index, output in enumerate(self.outputs):
            self.output_bytes += ((output.boxes[:, :, 1] - output.boxes[:, :, 0]).prod(axis=1)
                                  * graph.dtypes[operator.number, index].itemsize)
        self.different: List[Tuple[OutputShard, OperatorShard]] = []
        kind_numbers: Dict[Any, int] = {}
        kind_of: Dict[OutputShard, int] = {}
        for output_shard, shard in shard_of.items():
            shapes = tuple(None if box is None else shape_of(box) for box in shard.inputs)
            key = shape_of(output_shard.box), output_shard.partials, shapes, tuple(sorted(shard.attrs.items()))
            if key not in kind_numbers:
                kind_numbers[key] = len(kind_numbers)
                self.different.append((output_shard, shard))
            kind_of[output_shard] = kind_numbers[key]
        self.kinds = np.array([kind_of[output_shard] for output_shard in output_shards])
        self.inner: Optional[InnerRedistribution] = None
        collective = rule.collective
        if collective is not None and collective.applies(graph, operator, split):
            boxes = dict(enumerate(output_shard.box for output_shard in output_shards))
            held, needed, dtype = collective.layouts(graph, operator, boxes)
            positions = range(len(shards))
            self.inner = InnerRedistribution(box_array([held.boxes[position] for position in positions]),
                                             box_array([needed[position] for position in positions]),
                                             np.dtype(dtype).itemsize)


def _shard_boxes(boxes: Sequence[Optional[Box]]) -> _ShardBoxes:
    present = [box for box in boxes if box is not None]
    if len(present) == len(boxes):
        return _ShardBoxes(np.arange(len(boxes)), box_array(present))
    positions = np.array([position for position, box in enumerate(boxes) if box is not None], int)
    return _ShardBoxes(positions, box_array(present))


class ShardedOperator:
    """The shards of an operator on ranks.

    - `ranks` (numpy.ndarray of int32): in the order of the split.
    """

    def __init__(self, shards: OperatorShards, split: Split, intern: Callable[[np.ndarray, np.ndarray], RankBoxes]):
        self.shards, self.ranks, self._intern = shards, np.array(split.ranks, np.int32), intern
        self._order = self.ranks.argsort()
        self._is_ordered = bool((self._order[1:] > self._order[:-1]).all())
        self._boxes: Dict[Tuple[bool, int], RankBoxes] = {}

    def input_boxes(self, index: int) -> RankBoxes:
        """Return the box of an input that each rank reads."""
        return self._get(True, index)

    def output_boxes(self, index: int) -> RankBoxes:
        """Return the box of an output that each rank makes."""
        return self._get(False, index)

    def _get(self, is_input: bool, index: int) -> RankBoxes:
        rank_boxes = self._boxes.get((is_input, index))
        if rank_boxes is None:
            positions, boxes = (self.shards.inputs if is_input else self.shards.outputs)[index]
            rank_boxes = self._boxes[is_input, index] = (
                self.on_ranks(boxes) if len(positions) == len(self.ranks) else self._on_some_ranks(positions, boxes))
        return rank_boxes

    def on_ranks(self, boxes: np.ndarray) -> RankBoxes:
        """Return a box of each shard, on the ranks."""
        if self._is_ordered:
            return self._intern(self.ranks, boxes)
        return self._intern(self.ranks[self._order], np.ascontiguousarray(boxes[self._order]))

    def _on_some_ranks(self, positions: np.ndarray, boxes: np.ndarray) -> RankBoxes:
        ranks = self.ranks[positions]
        order = ranks.argsort()
        return self._intern(ranks[order], np.ascontiguousarray(boxes[order]))


class SplitOperator:
    """An operator with a split: its load and its memory; operators with the same key share one object.

    - `id`: a number that no other object has had.
    - `load`: by resource: the work of cores for forward and backward.
    - `output_bytes`: by rank: the bytes of its outputs, which backward needs.
    - `subgraphs`: the tasks that were built so far: those of forward under False, those of backward under True.
    """

    __slots__ = ('split', 'id', 'load', 'output_bytes', 'subgraphs')

    def __init__(self, split: Split, load: np.ndarray, output_bytes: np.ndarray):
        self.split, self.id, self.load, self.output_bytes = split, next(_IDS), load, output_bytes
        self.subgraphs: Dict[bool, TaskSubgraph] = {}


def whole_boxes(shape: Tuple[int, ...], boxes: RankBoxes) -> RankBoxes:
    """Return the box of a whole tensor on each of the same ranks."""
    return RankBoxes(boxes.ranks, np.ascontiguousarray(
        np.broadcast_to(box_array([full(shape)]), (len(boxes.ranks), len(shape), 2))))
