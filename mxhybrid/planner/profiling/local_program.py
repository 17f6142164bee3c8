"""A rank's program without communication, so that one process can run it.

Arrays that the rank would send to others become outputs of the program, those that it would receive become inputs.
"""
from typing import Any, Container, Dict, NamedTuple, Optional, Set, Tuple

import mxnet as mx

from ...parallel.ops.graph import Graph, Operator
from ...parallel.ops.registry import indices, rule_of
from ...parallel.redistribution.redistribution import Redistribution
from ...parallel.redistribution.redistribution_operator import isolated_joint_norm
from ...parallel.runtime.rank_program import Program, ProgramSpec
from ...parallel.sharding.box import Box, full, shape_of
from ...parallel.sharding.layout import Layout, Movement
from ...parallel.sharding.split import OutputShard

#: Operators that read the shape of their input, and whose rules let a shard read its elements all the same.
_SHAPE_READERS = ('zeros_like', 'ones_like')


class ProgramInput(NamedTuple):
    """An input array of a program."""

    shape: Tuple[int, ...]
    dtype: Any
    has_gradient: bool
    is_weight: bool = False
    #: If it is not 0, values are indices below this limit.
    index_limit: int = 0
    #: The array arrives in a blocked memory layout of oneDNN.
    is_blocked: bool = False
    #: Its gradient is row_sparse.
    is_table: bool = False


class LocalProgram(NamedTuple):
    """The computation of a rank."""

    #: Outputs of the program, then the arrays that the rank would send to others.
    symbol: Any
    #: By name.
    inputs: Dict[str, ProgramInput]


class _LocalNode:
    """A redistribution that moves nothing, with the methods of :class:`.RedistributionOperator`."""

    def __init__(self, redistribution: Redistribution, differentiable: bool, name: str):
        self.redistribution, self.differentiable, self.name = redistribution, differentiable, name

    def symbol(self, token: Any, local: Any, plain: bool = False) -> Tuple[Any, Any]:
        if local is not None:  # it becomes an output, since the last token is one
            token = mx.sym.Group([token, local if self.differentiable else mx.sym.BlockGrad(local)])
        shape = self.redistribution.shapes[1]
        return token, None if shape is None else mx.sym.var(self.name, shape=shape, dtype=self.redistribution.dtype)

    def joint_norm(self, token: Any, data: Any, parameters: Any, norm: Any) -> Optional[Tuple[Any, Any, Any]]:
        return (token, *isolated_joint_norm(self.name, data, parameters, norm))

    def ending(self, received: Any) -> Any:
        """Return `received` unchanged."""
        return received

    def release(self) -> None:
        """Do nothing: there is nothing to release."""


class _OneRank(Program):
    """A program that has only the redistributions of its own rank.

    To find out what the other ranks exchange among each other takes seconds for many ranks, and nothing here needs it.
    """

    def redistribute(self, local: Any, movement: Movement, operator: Operator, plain: bool = False) -> Any:
        return super().redistribute(local, movement._replace(needed=self._own(movement.needed)), operator, plain)

    def joint_norm(self, data: Any, parameters: Any, layout: Layout, needed: Dict[int, Box], operator: Operator,
                   norm: Any) -> Optional[Tuple[Any, Any]]:
        return super().joint_norm(data, parameters, layout, self._own(needed), operator, norm)

    def _own(self, needed: Dict[int, Box]) -> Dict[int, Box]:
        return {rank: box for rank, box in needed.items() if rank == self.rank}


def local_program(spec: ProgramSpec, rank: int, blocked: Container[int] = ()) -> LocalProgram:
    """Return a rank's program without its redistributions.

    An array that a redistribution receives is in a blocked layout of oneDNN if its operator is one of `blocked`.
    """
    parts, graph = spec.shards, spec.shards.graph
    nodes: Dict[str, _LocalNode] = {}

    def make_node(redistribution: Redistribution, differentiable: bool) -> _LocalNode:
        node = _LocalNode(redistribution, differentiable, 'mxhybrid_received%d' % len(nodes))
        nodes[node.name] = node
        return node
    program = _OneRank(spec, rank, make_node, 0)
    # The token is an input that is passed through, and so is an array that a redistribution receives for the network's
    # outputs.
    symbol = mx.sym.Group([output for output in program.symbol if output.list_outputs() != output.list_inputs()])
    limits = index_limits(graph)
    numbers = {operator.name: operator.number for operator in graph.operators if operator.op == 'null'}
    program_inputs: Dict[str, ProgramInput] = {}
    for name in symbol.list_inputs():
        if name in nodes:
            node = nodes[name]
            shape = node.redistribution.shapes[1]
            assert shape is not None
            is_blocked = node.redistribution.operator in blocked and can_be_blocked(shape, node.redistribution.dtype)
            program_inputs[name] = ProgramInput(shape, node.redistribution.dtype, node.differentiable,
                                                index_limit=limits.get(node.redistribution.operator, 0),
                                                is_blocked=is_blocked)
        elif name in graph.data:
            entry = numbers[name], 0
            program_inputs[name] = ProgramInput(shape_of(spec.inputs[entry][rank]), graph.dtypes[entry],
                                                name in spec.gradient_inputs,
                                                index_limit=limits.get(entry[0], 0))
        elif name in program.averages:
            average = program.averages[name]
            program_inputs[name] = ProgramInput(shape_of(parts.weights.boxes(average)[rank]),
                                                graph.dtypes[numbers[average], 0], True, True)
        elif name in numbers:
            has_gradient = name not in graph.auxiliary and name not in spec.frozen
            program_inputs[name] = ProgramInput(shape_of(parts.weights.boxes(name)[rank]),
                                                graph.dtypes[numbers[name], 0], has_gradient, True,
                                                is_table=numbers[name] in graph.tables)
        else:
            values = program.constants[name]
            program_inputs[name] = ProgramInput(values.shape, values.dtype, False, True)
    return LocalProgram(symbol, program_inputs)


def can_be_blocked(shape: Tuple[int, ...], dtype: Any) -> bool:
    """Return whether oneDNN has blocked layouts for an array."""
    return 3 <= len(shape) <= 5 and dtype == 'float32'


def index_limits(graph: Graph) -> Dict[int, int]:
    """Return the operators and data whose values are indices, with the limit that all of the indices are below."""
    limits: Dict[int, int] = {}

    def note(number: int, limit: int) -> None:
        if limits.get(number, limit + 1) > limit:
            limits[number] = limit
            for source in _value_sources(graph, number):
                note(source, limit)
    for operator in graph.computing:
        position = indices(operator)
        limit = None if position is None else rule_of(operator).index_limit(graph, operator)
        if position is not None and limit is not None:
            note(operator.inputs[position][0], limit)
    return limits


def _value_sources(graph: Graph, number: int) -> Set[int]:
    """Return the operators and data on whose values an operator depends: not those of which it reads the shape."""
    operator = graph.operators[number]
    if operator.op in _SHAPE_READERS:
        return set()
    whole = OutputShard(full(graph.shape(operator)))
    boxes = rule_of(operator).shard(graph, operator, whole).inputs if operator.op != 'null' else []
    return {source for (source, _), box in zip(operator.inputs, boxes) if box is not None}
