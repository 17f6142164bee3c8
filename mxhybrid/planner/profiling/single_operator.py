"""Makes the program of one shard of one operator, as if the network had no other operator.

An operator that is computed from weights only, such as the concatenation of the weights of a recurrent layer, belongs
to the operator that reads it.
"""
import itertools
from typing import Any, Dict, Optional, Set, Tuple

import mxnet as mx
import numpy as np

from ...native.symbols import symbol_function
from ...parallel.ops.graph import Entry, Graph, Operator
from ...parallel.ops.registry import indices, rule_of
from ...parallel.runtime.network_shards import NetworkShards
from ...parallel.runtime.rank_program import ProgramSpec
from ...parallel.sharding.box import Box, shape_of
from ...parallel.sharding.split import OutputShard, Split
from .local_program import LocalProgram, ProgramInput, can_be_blocked, local_program


class _PlaceholderSplit(Split):
    """A split with one known shard; the other shards have the same size, even beyond the end of the tensor."""

    def __init__(self, output_shard: OutputShard, degrees: Tuple[int, ...]):
        count = output_shard.partials
        for degree in degrees:
            count *= degree
        super().__init__(degrees, range(count), output_shard.partials)
        self._output_shard = output_shard

    def shards(self, shape: Any, grains: Any = ()) -> Dict[int, OutputShard]:
        output_shard, output_shards = self._output_shard, []
        for steps in itertools.product(*map(range, self.degrees)):
            box: Box = tuple((low + step * (high - low), high + step * (high - low))
                             for step, (low, high) in zip(steps, output_shard.box))
            output_shards += [OutputShard(box, (output_shard.partial_index + partial_index) % output_shard.partials,
                                          output_shard.partials) for partial_index in range(output_shard.partials)]
        return dict(enumerate(output_shards))


def degrees_around(shape: Tuple[int, ...], output_shard: OutputShard) -> Tuple[int, ...]:
    """Return the number of ranges that each dimension of an output is split into, if `output_shard` is one of them."""
    return tuple(max(1 + (extent < count), round(count / extent))
                 for count, extent in zip(shape, shape_of(output_shard.box)))


def placeholder_split(shape: Tuple[int, ...], output_shard: OutputShard, whole: Optional[OutputShard] = None) -> Split:
    """Return a split that contains `output_shard`, with the degrees of a split that contains `whole`."""
    return _PlaceholderSplit(output_shard, degrees_around(shape, whole or output_shard))


def _index_input(operator: Operator) -> Optional[Entry]:
    """Return the entry that an operator reads as indices only: it gets no gradient, whatever computes it."""
    position = indices(operator)
    if position is None or operator.inputs[position] in operator.inputs[:position] + operator.inputs[position + 1:]:
        return None
    return operator.inputs[position]


class _SingleOperator:
    """The network of one operator."""

    def __init__(self, graph: Graph, operator: Operator):
        self._from = graph
        self._symbols: Dict[Entry, Any] = {}
        #: Operators on weights alone that it reads, by name.
        self._fixed: Dict[str, Operator] = {}
        self._data: Dict[str, Tuple[int, ...]] = {}
        self._dtypes: Dict[str, Any] = {}
        #: The entry of the original graph that each input stands for, by name.
        self.sources: Dict[str, Entry] = {}
        symbol = self._of(operator)
        used = sorted({output for reader in graph.operators for source, output in reader.inputs
                       if source == operator.number}
                      | {output for source, output in graph.heads if source == operator.number}) or [0]
        if operator.outputs > 1:
            symbol = mx.sym.Group([symbol[output] for output in used])
        self.graph = Graph(symbol, self._data, self._dtypes)
        self._factor(operator)

    def _factor(self, operator: Operator) -> None:
        """Give the graph the factors of the original one."""
        original = self._from
        if not original.factors:
            return
        sources = {own.number: operator if own.number == self.graph.computing[0].number else self._fixed[own.name]
                   for own in self.graph.operators if own.op != 'null'}
        factors, alignments = {}, {}
        for number, source in sources.items():
            operator_copy = self.graph.operators[number]
            pairs = list(zip(source.inputs, operator_copy.inputs))
            pairs += [((source.number, output), (number, output)) for output in range(operator_copy.outputs)]
            factors.update({entry: original.factors[known] for known, entry in pairs if known in original.factors})
            if source.number in original.alignments:
                alignments[number] = original.alignments[source.number]
        self.graph.factor(factors, alignments)

    def _of(self, operator: Operator) -> Any:
        attrs = operator.settings
        inputs = [self._symbol(entry) for entry in operator.inputs]
        return symbol_function(operator.op)(*inputs, name=operator.name, **attrs)

    def _symbol(self, entry: Entry) -> Any:
        if entry not in self._symbols:
            source = self._from.operators[entry[0]]
            if source.op != 'null' and source.number in self._from.fixed:
                symbol = self._of(source)
                self._fixed[source.name] = source
                self._symbols.update({(source.number, output): symbol[output] if source.outputs > 1 else symbol
                                      for output in range(source.outputs)})
            else:
                # Two operators may have the same name, for example if a Block is called twice.
                name = source.name if source.op == 'null' else '%s_output%d_of_%d' % (source.name, entry[1],
                                                                                      source.number)
                self.sources[name] = entry
                shape, self._dtypes[name] = self._from.array_shapes[entry], self._from.dtypes[entry]
                if source.number not in self._from.fixed:
                    self._data[name] = shape
                self._symbols[entry] = mx.sym.var(name, shape=shape, dtype=self._dtypes[name])
        return self._symbols[entry]


def single_operator_program(graph: Graph, operator: Operator, output_shard: OutputShard, with_gradients: Set[int],
                            blocked: Set[int], collectives: Dict[str, Any], whole: Optional[OutputShard] = None
                            ) -> LocalProgram:
    """Return the program of a shard.

    - `with_gradients`, `blocked`: operators of `graph` that receive gradients, and those whose outputs are in a blocked
      layout of oneDNN.
    - `collectives`: as for :class:`mxhybrid.parallel.runtime.rank_program.Program`.
    - `whole`: the original shard if `output_shard` is a scaled one: communication inside the operator follows the
      original.
    """
    network = _SingleOperator(graph, operator)
    alone = network.graph.computing[0]
    parts = NetworkShards(network.graph, {alone.number: placeholder_split(graph.shape(operator), output_shard, whole)})
    boxes = {rank: parts.shard(alone, rank).inputs for rank in parts.output_shards[alone.number]}
    inputs: Dict[Entry, Dict[int, Box]] = {}
    for position, entry in enumerate(alone.inputs):
        if entry[0] not in network.graph.fixed:
            inputs[entry] = {rank: box for rank, rank_boxes in boxes.items() for box in [rank_boxes[position]]
                             if box is not None}
    outputs = {entry: [parts.layout(alone, entry[1]).boxes] for entry in network.graph.heads}
    gradient_inputs = {name for name, entry in network.sources.items()
                       if entry[0] in with_gradients and entry != _index_input(operator)}
    program = local_program(ProgramSpec(parts, inputs, outputs, collectives, gradient_inputs,
                                        set(network.sources) - gradient_inputs), 0)
    return program._replace(inputs={
        name: value._replace(is_blocked=name in network.sources and network.sources[name][0] in blocked
                             and can_be_blocked(value.shape, value.dtype)) for name, value in program.inputs.items()})


def conversion_program(shape: Tuple[int, ...]) -> LocalProgram:
    """Return a program that converts an array of float32 from a blocked layout of oneDNN to the default layout."""
    blocked = mx.sym.var('blocked', shape=shape, dtype='float32')
    # This operator knows the default layout alone, and copies next to nothing.
    return LocalProgram(mx.sym.slice_axis(blocked, axis=1, begin=0, end=1, name='converted'),
                        {'blocked': ProgramInput(shape, np.dtype('float32'), False, is_blocked=True)})


def blocked_operators(graph: Graph) -> Set[int]:
    """Return the operators whose outputs are in a blocked layout of oneDNN in a program without redistributions."""
    blocked: Set[int] = set()
    for operator in graph.computing:
        rule = rule_of(operator)
        if rule.makes_blocked or rule.keeps_blocked and any(source in blocked for source, _ in operator.inputs):
            blocked.add(operator.number)
    return blocked
