"""A rank's program whose exchanges move nothing, so that one process can run it: what it would give is an output, what
it would get is an input.
"""
from typing import Any, Dict, List, NamedTuple, Set, Tuple

import mxnet as mx

from ...parallel.ops.graph import Entry, Graph, Operator
from ...parallel.ops.registry import indices
from ...parallel.redistribution.exchange import Exchange
from ...parallel.runtime.rank_program import Parts, Program
from ...parallel.sharding.box import Box, shape_of
from ...parallel.sharding.layout import Layout


class ProgramInput(NamedTuple):
    """An array that a program is given.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    has_gradient : bool
        Whether it has a gradient.
    is_weight : bool
    below : int
        Values are indices below that, if it is not 0.
    is_blocked : bool
        Whether it comes in a layout of oneDNN's.
    is_table : bool
        Whether its gradient is row_sparse.
    """

    shape: Tuple[int, ...]
    dtype: Any
    has_gradient: bool
    is_weight: bool = False
    below: int = 0
    is_blocked: bool = False
    is_table: bool = False


class LocalProgram(NamedTuple):
    """What a rank computes.

    Attributes
    ----------
    symbol : mxnet.symbol.Symbol
        Outputs of the program, then what the rank would give to others.
    inputs : dict of str to ProgramInput
        By name.
    """

    symbol: Any
    inputs: Dict[str, ProgramInput]


class _LocalNode:
    """An exchange that moves nothing."""

    def __init__(self, exchange: Exchange, differentiable: bool, name: str):
        self.exchange, self.differentiable, self.name = exchange, differentiable, name

    def symbol(self, token: Any, given: Any, plain: bool = False) -> Tuple[Any, Any]:
        """As :meth:`mxhybrid.parallel.runtime.rank_program.AnyNode.symbol`."""
        if given is not None:  # it becomes an output, since the last token is one
            token = mx.sym.Group([token, given if self.differentiable else mx.sym.BlockGrad(given)])
        shape = self.exchange.shapes[1]
        return token, None if shape is None else mx.sym.var(self.name, shape=shape, dtype=self.exchange.dtype)

    def ending(self, made: Any) -> Any:
        """As it is."""
        return made

    def forget(self) -> None:
        """Nothing is kept anywhere."""


class _OneRank(Program):
    """A program whose exchanges are those of its own rank: what others get of each other, where they are many, takes
    seconds to find out, and nothing of it is computed here.
    """

    def exchange(self, given: Any, have: Layout, wanted: Dict[int, Box], *more: Any, **others: Any) -> Any:
        """As :meth:`mxhybrid.parallel.runtime.rank_program.Program.exchange`."""
        return super().exchange(given, have, {rank: box for rank, box in wanted.items() if rank == self.rank}, *more,
                                **others)


def local_program(parts: Parts, rank: int, inputs: Dict[Entry, Dict[int, Box]],
                  outputs: Dict[Entry, List[Dict[int, Box]]], composed: Dict[str, Any], flows: Any = (),
                  frozen: Any = ()) -> LocalProgram:
    """A rank's program without its exchanges; the parameters are those of
    :class:`mxhybrid.parallel.runtime.rank_program.Program`.
    """
    graph = parts.graph
    nodes: Dict[str, _LocalNode] = {}

    def make_node(exchange: Exchange, differentiable: bool) -> _LocalNode:
        node = _LocalNode(exchange, differentiable, 'mxhybrid_received%d' % len(nodes))
        nodes[node.name] = node
        return node
    program = _OneRank(parts, rank, inputs, outputs, composed, make_node, 0, flows, frozen)
    made = list(program.symbol)
    # The token, and what an exchange brings for the network's outputs, are just inputs.
    kept = [at for at, one in enumerate(made) if one.list_outputs() != one.list_inputs()]
    symbol = mx.sym.Group([made[at] for at in kept])
    below = index_limits(graph)
    numbers = {one.name: one.number for one in graph.operators if one.op == 'null'}
    found: Dict[str, ProgramInput] = {}
    for name in symbol.list_inputs():
        if name in nodes:
            node = nodes[name]
            shape = node.exchange.shapes[1]
            assert shape is not None
            found[name] = ProgramInput(shape, node.exchange.dtype, node.differentiable,
                                       below=below.get(node.exchange.operator, 0))
        elif name in graph.data:
            entry = numbers[name], 0
            found[name] = ProgramInput(shape_of(inputs[entry][rank]), graph.dtypes[entry], name in flows,
                                       below=below.get(entry[0], 0))
        elif name in program.averages:
            average = program.averages[name]
            found[name] = ProgramInput(shape_of(parts.weights.boxes(average)[rank]),
                                       graph.dtypes[numbers[average], 0], True, True)
        elif name in numbers:
            learns = name not in graph.auxiliary and name not in frozen
            found[name] = ProgramInput(shape_of(parts.weights.boxes(name)[rank]), graph.dtypes[numbers[name], 0],
                                       learns, True, is_table=numbers[name] in graph.tables)
        else:
            values = program.constants[name]
            found[name] = ProgramInput(values.shape, values.dtype, False, True)
    return LocalProgram(symbol, found)


def index_limits(graph: Graph) -> Dict[int, int]:
    """Operators and data whose values are indices, and what all of these are below."""
    found: Dict[int, int] = {}

    def note(number: int, count: int) -> None:
        if found.get(number, count + 1) > count:
            found[number] = count
            for source, _ in graph.operators[number].inputs:
                note(source, count)
    for one in graph.computing:
        at = indices(one)
        if at is not None and one.op not in _ANY_LABELS:
            note(one.inputs[at][0], _index_limit(graph, one))
    return found


#: Operators whose labels are any numbers.
_ANY_LABELS = {'LinearRegressionOutput', 'LogisticRegressionOutput', 'MAERegressionOutput'}


#: Where indices, or lengths, count along if no axis is given.
_DEFAULT_AXES = {'take': 0, 'batch_take': 1, 'SequenceMask': 0, 'SequenceReverse': 0, 'SequenceLast': 0}


def _index_limit(graph: Graph, one: Operator) -> int:
    """The count below which an operator's indices, or lengths, are."""
    if one.op == 'one_hot':
        return int(one.get('depth'))
    if one.op == 'Embedding':
        return graph.inputs(one)[1][0]
    shape = graph.inputs(one)[0]
    if one.op in ('SoftmaxOutput', 'SVMOutput'):
        return shape[1 if len(shape) > 1 and not one.get('preserve_shape', False) else -1]
    count = shape[int(one.get('axis', _DEFAULT_AXES.get(one.op, -1)))]
    return count + (one.op not in ('pick', 'take', 'batch_take'))  # or lengths


def operators_with_gradients(graph: Graph, flows: Any = (), frozen: Any = ()) -> Set[int]:
    """Operators, data and weights to which gradients go back."""
    found: Set[int] = set()
    for one in graph.operators:
        used = indices(one)
        if one.op == 'null':
            if one.name in flows or graph.is_parameter(one.number) and one.name not in graph.auxiliary and \
                    one.name not in frozen:
                found.add(one.number)
        elif any(source in found for at, (source, _) in enumerate(one.inputs) if at != used):
            found.add(one.number)
    return found
