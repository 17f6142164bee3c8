"""Segments of a rank's program that are computed again in the backward pass: their order, inputs and outputs."""
import heapq
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

import mxnet as mx

from ..ops.graph import Entry, Graph, Operator
from ..ops.registry import rule_of
from ..plans.recompute import Segment
from ..sharding.box import shape_of
from .engine_threads import SegmentThreads
from .network_shards import NetworkShards
from .recomputed_operator import RecomputedOperator

#: Names of the inputs of a segment that are an entry, and the mask and the factor of a Dropout.
_INPUT, MASK, _SCALE = 'mxhybrid_into_segment_%d_%d', 'mxhybrid_mask_of_%d', 'mxhybrid_scale_of_%d'


def in_order(graph: Graph, segments: Sequence[Segment]) -> List[Union[Operator, Segment]]:
    """Return all operators in an order in which they can run, with segments as wholes."""
    if not segments:
        return list(graph.operators)
    unit_of = {number: number for number in range(len(graph.operators))}
    segment_of = {segment.operators[0]: segment for segment in segments}
    for segment in segments:
        unit_of.update(dict.fromkeys(segment.operators, segment.operators[0]))
    sources: Dict[int, Set[int]] = {unit: set() for unit in unit_of.values()}
    readers: Dict[int, List[int]] = {unit: [] for unit in sources}
    for operator in graph.operators:
        unit = unit_of[operator.number]
        sources[unit] |= {unit_of[source] for source, _ in operator.inputs} - {unit}
    for unit, read in sources.items():
        for source in read:
            readers[source].append(unit)
    lacking = {unit: len(read) for unit, read in sources.items()}
    ready = [unit for unit, count in lacking.items() if not count]
    heapq.heapify(ready)
    ordered: List[Union[Operator, Segment]] = []
    while ready:
        unit = heapq.heappop(ready)
        ordered.append(segment_of.get(unit, graph.operators[unit]))
        for reader in readers[unit]:
            lacking[reader] -= 1
            if not lacking[reader]:
                heapq.heappush(ready, reader)
    assert len(ordered) == len(sources), 'segments depend on each other'
    return ordered


class Inside:
    """The shards that a rank computes in a segment, as symbols of the segment's inputs.

    - `outside`: what this rank has outside of the segment.
    - `masks`: the masks of Dropout by input, see :func:`drawn_masks`.
    - `is_again`: whether it is the computation in the backward pass.
    """

    #: Attributes of a program that a segment has for itself.
    REPLACED = ('_local', '_token', 'uses_token', '_fixed', '_fetched', '_sources', '_statistics', '_shapes_read')

    def __init__(self, outside: Dict[Entry, Any], graph: Graph, masks: Dict[str, Any], is_again: bool):
        self.local = _Local(outside, graph)
        self.masks, self.is_again = masks, is_again
        self.token: Any = None
        self.statistics: Dict[int, List[Tuple[Any, float]]] = {}


class _Local(Dict[Entry, Any]):
    """The arrays that a rank has inside of a segment: outputs of its operators, and inputs that were read."""

    def __init__(self, outside: Dict[Entry, Any], graph: Graph):
        super().__init__()
        self._outside, self._graph = outside, graph
        #: The entries that inputs stand for, by the names of the inputs.
        self.entries_by_name: Dict[str, Entry] = {}

    def __contains__(self, entry: object) -> bool:
        return super().__contains__(entry) or entry in self._outside

    def __missing__(self, entry: Entry) -> Any:
        if entry not in self._outside:
            raise KeyError(entry)
        name = _INPUT % entry
        self.entries_by_name[name] = entry
        self[entry] = mx.sym.SliceChannel(mx.sym.var(name, dtype=self._graph.dtypes[entry]), num_outputs=1, axis=0,
                                          squeeze_axis=True)
        return self[entry]


class Joined(NamedTuple):
    """A segment as an operator, and its outputs."""

    operator: RecomputedOperator
    #: The first outputs, which other operators and outputs of the network read.
    entries: List[Entry]
    #: The next ones: statistics for running averages, by the average's number, with their momentum.
    statistics: List[Tuple[int, float]]
    #: Whether the last one is a token.
    has_token: bool


def joined(program: Any, segment: Segment, forward: Inside, again: Inside, token: str, threads: SegmentThreads,
           on_failure: Callable[[BaseException], None]) -> Optional[Joined]:
    """Return a segment as an operator; None if this rank has no part in it."""
    graph: Graph = program.graph
    entries = [entry for entry in _read_outside(graph, segment) if entry in dict.keys(forward.local)]
    statistics = [(number, value, momentum) for number, calls in forward.statistics.items()
                  for value, momentum in calls]
    outputs = [mx.sym.stack(forward.local[entry], axis=0) for entry in entries]
    outputs += [mx.sym.stack(value, axis=0) for _, value, _ in statistics]
    heads = [position for position, entry in enumerate(entries) if program.learns(graph.operators[entry[0]])]
    outputs_again = [mx.sym.stack(again.local[entries[position]], axis=0) for position in heads]
    if forward.token is not None:
        heads.append(len(outputs))
        outputs.append(forward.token)
        outputs_again.append(again.token)
    if not outputs or not heads:
        assert not outputs, segment
        return None
    graphs = mx.sym.Group(outputs), mx.sym.Group(outputs_again)
    inputs = list(dict.fromkeys(name for symbol in graphs for name in symbol.list_inputs()))
    sources = {operator.name: operator for operator in graph.operators if graph.is_parameter(operator.number)}
    sources.update({name: graph.operators[number] for name, (number, _) in forward.local.entries_by_name.items()})
    learning = [name for name in inputs if name == token or name in sources and program.learns(sources[name])]
    operator = RecomputedOperator(inputs, learning, *graphs, heads, threads, on_failure)
    return Joined(operator, entries, [(number, momentum) for number, _, momentum in statistics],
                  forward.token is not None)


def _read_outside(graph: Graph, segment: Segment) -> List[Entry]:
    """Return the outputs of a segment that operators outside of it read, and all outputs of its losses, which have
    gradients even if no operator reads them.
    """
    inside = set(segment.operators)
    read = {entry for operator in graph.operators if operator.number not in inside for entry in operator.inputs}
    read |= set(graph.heads)
    return [(number, output) for number in segment.operators for output in range(graph.operators[number].outputs)
            if (number, output) in read or rule_of(graph.operators[number]).is_loss]


def drawn_masks(shards: NetworkShards, rank: int, operators: Sequence[Operator]) -> Dict[str, Any]:
    """Return, by name, two inputs for each Dropout of which a rank computes a shard: the mask of the elements that it
    keeps, with one byte for each element, and the factor by which it scales them.

    A segment reads both, so that its two computations drop the same elements.
    """
    masks: Dict[str, Any] = {}
    for operator in operators:
        if operator.op != 'Dropout' or rank not in shards.output_shards[operator.number] \
                or not float(operator.get('p', 0.5)):
            continue
        shard = shards.shard(operator, rank)
        ones = mx.sym.ones(shape_of(shard.outputs[0]), dtype=str(shards.graph.dtypes[operator.number, 0]))
        drawn = shard.symbol(operator, [ones], operator.name + '_mask')
        drawn = mx.sym.BlockGrad(drawn[0] if len(drawn.list_outputs()) > 1 else drawn)
        masks[MASK % operator.number] = mx.sym.cast(drawn > 0, 'uint8')
        masks[_SCALE % operator.number] = mx.sym.reshape(mx.sym.max(drawn), shape=(1,) * len(shard.outputs[0]))
    return masks


def with_mask(operator: Operator, data: Any, dtype: Any) -> Any:
    """Return a Dropout inside of a segment as a product with its mask and its factor."""
    mask = mx.sym.cast(mx.sym.var(MASK % operator.number, dtype='uint8'), dtype)
    factor = mx.sym.var(_SCALE % operator.number, dtype=dtype)
    return mx.sym.elemwise_mul(data, mx.sym.broadcast_mul(mask, factor), name=operator.name)
