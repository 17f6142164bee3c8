"""A rank's own graph: its parts of all operators, and the exchanges between them."""
from collections import Counter
from typing import Any, Callable, Dict, List, Optional, Protocol, Set, Tuple

import mxnet as mx
import numpy as np

from ...native.symbols import CONSTANTS, symbol_function
from ..ops.graph import Entry, Graph, Operator
from ..ops.registry import indices, is_elementwise, is_loss, rule_of
from ..ops.rule import Collective, OperatorShard
from ..redistribution.redistribution import Redistribution
from ..sharding.box import Box, full, shape_of, size_of, slices_in
from ..sharding.layout import Layout
from ..sharding.split import OutputShard, Split
from ..sharding.weight_layout import WeightLayouts
from .gradient_readers import Readers, most_addends
from .running_averages import Updated, updates_of


class RedistributionNode(Protocol):
    """An exchange in a graph."""

    def symbol(self, token: Any, given: Any, plain: bool = False) -> Tuple[Any, Any]:
        """The token after it, and what the rank gets, None if that is nothing; `plain`: the gradient of what is given
        is wanted, and never added up in place, or none goes back.
        """

    def ending(self, made: Any) -> Any:
        """What a graph may have as an output, of the token or what the rank gets."""

    def forget(self) -> None:
        """Nobody calls it any more."""


#: Makes the node of an exchange: exchange, whether gradients go back.
MakeNode = Callable[[Redistribution, bool], RedistributionNode]

#: How MXNet compiles a program: shapes never change, so that the engine gets small operators in one piece.
COMPILED: List[Tuple[str, Any]] = [('static_alloc', True), ('static_shape', True)]

#: Name of the first token.
TOKEN = 'mxhybrid_token'


class NetworkShards:
    """All parts of all operators, and what of each weight they need; the same on all ranks."""

    def __init__(self, graph: Graph, splits: Dict[int, Split]):
        self.graph, self.splits = graph, splits
        self.output_shards: Dict[int, Dict[int, OutputShard]] = {}
        self._shards: Dict[Tuple[int, int], OperatorShard] = {}
        self.weights = WeightLayouts(graph.parameters)
        for operator in graph.computing:
            rule = rule_of(operator)
            self.output_shards[operator.number] = splits[operator.number].shards(graph.shape(operator),
                                                                                 rule.grains(graph, operator))
            for rank, place in self.output_shards[operator.number].items():
                shard = self._shards[operator.number, rank] = rule.shard(graph, operator, place)
                for (source, _), box in zip(operator.inputs, shard.inputs):
                    if box is not None and source in graph.fixed:
                        self._need(source, rank, box)
        # Whatever is a network's output by itself is needed whole.
        for source, _ in graph.heads:
            if source in graph.fixed:
                for rank in sorted({rank for split in splits.values() for rank in split.ranks}):
                    self._need(source, rank, full(graph.shapes[source, 0]))

    def _need(self, number: int, rank: int, box: Box) -> None:
        """Operators on parameters alone are computed whole wherever they are used, but for those of one element each.
        """
        operator = self.graph.operators[number]
        if operator.op == 'null':
            self.weights.require(operator.name, rank, box)
        for source, _ in operator.inputs:
            self._need(source, rank, box if is_elementwise(operator) else full(self.graph.shapes[source, 0]))

    def shard(self, operator: Operator, rank: int) -> OperatorShard:
        """The part of an operator that a rank has."""
        return self._shards[operator.number, rank]

    def layout(self, operator: Operator, output: int) -> Layout:
        """Of an output of an operator."""
        partial = self.splits[operator.number].addends > 1
        return Layout(self.graph.shape(operator, output), {rank: self.shard(operator, rank).outputs[output]
                                                      for rank in self.output_shards[operator.number]}, partial)


class Program:
    """What a rank computes.

    Parameters
    ----------
    shards : Parts
    rank : int
    inputs : dict of Entry to dict of int to Box
        What each rank is given of data.
    outputs : dict of Entry to list of dict of int to Box
        What each rank is to have of the network's outputs: boxes that are put behind each other.
    collectives : dict of str to Collective
        What builds operators that ranks compute together, by their names.
    make_node : callable
        Makes nodes of exchanges.
    first : int
        Number of the first exchange.
    gradient_inputs : set of str
        Data through which gradients go back.
    frozen : set of str
        Parameters that have no gradients.

    Attributes
    ----------
    symbol : mxnet.symbol.Symbol
        What keeps backward passes in order, outputs, what updates running averages, what keeps exchanges in order.
    leading : int
        Outputs of `symbol` before those of the network.
    averages : dict of str to str
        Running averages by the input whose gradient is their next value.
    constants : dict of str to numpy.ndarray
        Inputs of `symbol` besides data and parameters.
    redistributions : list of Redistribution
        In the order in which they are made; also those in which this rank has no part.
    """

    def __init__(self, shards: NetworkShards, rank: int, inputs: Dict[Entry, Dict[int, Box]],
                 outputs: Dict[Entry, List[Dict[int, Box]]], collectives: Dict[str, Collective], make_node: MakeNode,
                 first: int, gradient_inputs: Any = (), frozen: Any = ()):
        self.shards, self.graph, self.rank = shards, shards.graph, rank
        self._collectives, self._make_node, self._number = collectives, make_node, first
        self._token = mx.sym.var(TOKEN, dtype='float32')
        self.uses_token = False
        self._layouts: Dict[Entry, Layout] = {}
        self._local: Dict[Entry, Any] = {}
        self._fixed: Dict[int, Any] = {}
        self._fetched: Dict[Any, Any] = {}
        self._sources = Readers()
        #: What operators read that may not add their gradient to others, see :class:`Readers`.
        self._mixed = {entry for operator in self.graph.operators if not rule_of(operator).adds_weight_gradients
                       for entry in operator.inputs}
        #: Operators through which gradients may go back; those of them that something trained hangs on.
        self._flowing: Set[int] = set()
        self._learning: Set[int] = set()
        self._statistics: Dict[int, List[Tuple[Any, float]]] = {}
        self.averages: Dict[str, str] = {}
        self.constants: Dict[str, np.ndarray] = {}
        self.redistributions: List[Redistribution] = []
        self._readers = Counter([entry for operator in self.graph.operators
                                 for entry in operator.inputs] + self.graph.heads)
        self._nodes: List[RedistributionNode] = []
        #: What operators take the shape of, and nothing else.
        self._shapes_read: List[Entry] = []
        for operator in self.graph.operators:
            if operator.number in self.graph.fixed:
                if self.graph.is_parameter(operator.number):
                    self._flowing.add(operator.number)
                    if operator.name not in frozen and operator.name not in self.graph.auxiliary:
                        self._learning.add(operator.number)
                self._pass_on(operator)
            elif operator.op == 'null':
                self._data(operator, inputs[operator.number, 0], operator.name in gradient_inputs)
            else:
                self._operator(operator)
        heads = [self._with_own_gradient(entry, self._head(entry, outputs[entry])) for entry in self.graph.heads]
        self.outputs = len(heads)
        last = [self._nodes[-1].ending(self._token)] if self.uses_token else []
        updates = updates_of([self._updated(self.graph.operators[number], calls)
                              for number, calls in self._statistics.items()])
        self._updates = len(updates)
        ends = heads + updates + last
        leading = self._leading() if updates else []
        self.leading = len(leading)
        self.symbol = mx.sym.Group(leading + ends + self._unread(mx.sym.Group(ends)))

    def _leading(self) -> List[Any]:
        """Return an element of the smallest weight that learns, unless data with a gradient comes first in the network.

        MXNet runs the backward passes of several calls in the order of the first inputs that have gradients.  If that
        is a weight, which all calls share, the last call comes first; if it is data, the first call.
        """
        first = next((operator
                      for operator in self.graph.operators if operator.op == 'null' and operator.number in self._learning), None)
        if first is not None and not self.graph.is_parameter(first.number):
            return []
        sizes = [(size_of(self.shards.weights.boxes(operator.name)[self.rank]), operator.number)
                 for operator in self.graph.operators
                 if operator.number in self._learning and self.graph.is_parameter(operator.number)
                 and self.rank in self.shards.weights.boxes(operator.name) and operator.number not in self.graph.tables]
        return [self._element(self.graph.operators[min(sizes)[1]])] if sizes else []

    def _element(self, weight: Operator) -> Any:
        """The first element of what this rank holds of a weight."""
        shape = shape_of(self.shards.weights.boxes(weight.name)[self.rank])
        return mx.sym.slice(self._parameter(weight), begin=(0,) * len(shape), end=(1,) * len(shape))

    def _unread(self, symbol: Any) -> List[Any]:
        """An element of each weight that this rank holds and that nothing needs which it computes, as where another one
        has a copy of that: so that backward gives it a gradient of zeros.
        """
        used, found = set(symbol.list_inputs()), []
        for operator in self.graph.operators:
            boxes = self.shards.weights.boxes(operator.name) if self.graph.is_parameter(operator.number) else {}
            if self.rank in boxes and operator.name not in used and operator.name not in self.graph.auxiliary:
                found.append(self._element(operator))
        # A loss gives a gradient even where no operator reads its values, as where one takes its shape.
        losses = [self._local[entry] for entry in self._shapes_read if self._is_loss(entry) and entry in self._local]
        return found + [mx.sym.slice_axis(mx.sym.reshape(made, shape=(-1,)), axis=0, begin=0, end=1) for made in losses]

    def _is_loss(self, entry: Entry) -> bool:
        return is_loss(self.graph.operators[entry[0]]) and entry[0] in self._learning

    @property
    def token_place(self) -> int:
        """Which of the outputs behind :attr:`leading` is there once all exchanges are made, where it has any."""
        return self.outputs + self._updates

    def forget(self) -> None:
        """It is not run any more."""
        for node in self._nodes:
            node.forget()

    # -- data and operators ----------------------------------------------------------------------------------------

    def _data(self, operator: Operator, boxes: Dict[int, Box], has_gradient: bool) -> None:
        entry = operator.number, 0
        self._layouts[entry] = Layout(self.graph.shape(operator), boxes)
        given = mx.sym.var(operator.name, dtype=self.graph.dtypes[entry])
        self._local[entry] = given if has_gradient else mx.sym.BlockGrad(given)
        if has_gradient:
            self._flowing.add(operator.number)
            self._learning.add(operator.number)

    def _pass_on(self, operator: Operator) -> None:
        used = indices(operator)
        for known in (self._flowing, self._learning):
            if any(source in known for at, (source, _) in enumerate(operator.inputs) if at != used):
                known.add(operator.number)

    def learns(self, operator: Operator) -> bool:
        """Whether backward comes to an operator."""
        return operator.number in self._learning

    def _operator(self, operator: Operator) -> None:
        used = indices(operator)
        self._pass_on(operator)
        ranks = self.shards.output_shards[operator.number]
        shards = {rank: self.shards.shard(operator, rank) for rank in ranks}
        given, shared = [], []
        for at, entry in enumerate(operator.inputs):
            boxes = {rank: shard.inputs[at] for rank, shard in shards.items()}
            wanted = {rank: box for rank, box in boxes.items() if box is not None}
            fill = next(iter(shards.values())).fills[at]
            if not wanted:
                self._shapes_read.append(entry)
            found = self.fetch(entry, wanted, fill, at == used)
            if found is not None and at == used and entry[0] in self._flowing:
                found = mx.sym.BlockGrad(found)  # or Embedding would be asked for a gradient of ids behind an exchange
            if self.rank in wanted:
                given.append(found)
                shared.append(self._readers[entry] > 1)
        for output in range(operator.outputs):
            self._layouts[operator.number, output] = self.shards.layout(operator, output)
        collective = self._collectives.get(operator.op)
        is_joint = collective is not None and collective.applies(self.graph, operator,
                                                                 self.shards.splits[operator.number])
        if is_joint or self.rank in shards and shards[self.rank].build is not None:
            # It may read an input several times, of which others would have to know.
            given = [mx.sym.identity(symbol) if is_shared else symbol for symbol, is_shared in zip(given, shared)]
        if collective is not None and is_joint:
            made = collective.build(self, operator, given)
            if self.rank in shards:
                self._local[operator.number, 0] = made
        elif self.rank in shards:
            made = None if collective is None else collective.build_alone(self, operator, given)
            if made is None:
                self._compute(operator, shards[self.rank], given)
            else:
                self._local[operator.number, 0] = made

    def _compute(self, operator: Operator, shard: OperatorShard, given: List[Any]) -> None:
        attrs = {key: value for key, value in operator.attrs.items() if not key.startswith('__')}
        attrs.update({key: str(value) for key, value in shard.attrs.items()})
        if shard.build is not None:
            made = shard.build(given, operator.name, attrs)
        else:
            made = symbol_function(operator.op)(*given, name=operator.name, **attrs)
        for output in range(operator.outputs):
            self._local[operator.number, output] = made[output] if len(made.list_outputs()) > 1 else made

    # -- what parts read -------------------------------------------------------------------------------------------

    def fetch(self, entry: Entry, wanted: Dict[int, Box], fill: float = 0.0, as_index: bool = False) -> Any:
        """The symbol of what this rank wants of an output, after an exchange if any rank wants what it does not have;
        None if it wants nothing.
        """
        if entry[0] in self.graph.fixed:
            return self._constant(entry, wanted[self.rank]) if self.rank in wanted else None
        have = self._layouts[entry]
        if have.gives(wanted):
            return self._sources.give(self._local[entry]) if self.rank in wanted else None
        key = entry, tuple(sorted(wanted.items())), fill, as_index
        if key not in self._fetched:
            self._fetched[key] = self._sliced(entry, have, wanted) or self._redistributed(entry, have, wanted, fill,
                                                                                      as_index)
        fetched = self._fetched[key][0]
        return None if fetched is None else self._sources.give(fetched)

    def _sliced(self, entry: Entry, have: Layout, wanted: Dict[int, Box]) -> Optional[List[Any]]:
        """Where every rank has more than it wants, and nothing moves."""
        if have.partial or not all(rank in have.boxes and all(
                low >= start and high <= end for (low, high), (start, end) in zip(box, have.boxes[rank]))
                for rank, box in wanted.items()):
            return None
        if self.rank not in wanted:
            return [None]
        return [_slice(self._sources.give(self._local[entry]), slices_in(wanted[self.rank], have.boxes[self.rank]))]

    def _redistributed(self, entry: Entry, have: Layout, wanted: Dict[int, Box], fill: float,
                       as_index: bool) -> List[Any]:
        operator = self.graph.operators[entry[0]]
        differentiable = entry[0] in self._flowing and not as_index
        given = self._sources.give(self._local[entry]) if entry in self._local else None
        return [self.redistribute(given, have, wanted, self.graph.dtypes[entry], operator, fill, differentiable,
                              plain=self.is_plain(entry) or not differentiable)]

    def is_plain(self, entry: Entry) -> bool:
        """Whether the gradient of an output is wanted, and is no sum of many, which MXNet makes in place
        (AggregateGradient of its graph_executor.cc); an operator that is several reads what it is given twice.
        """
        return entry[0] in self._learning and 2 * self._readers[entry] < most_addends()

    def redistribute(self, given: Any, have: Layout, wanted: Dict[int, Box], dtype: Any, operator: Operator,
                     fill: float = 0.0,
                 differentiable: bool = True, one_gradient: bool = False, plain: bool = False) -> Any:
        """The symbol of what this rank gets by an exchange that all ranks make for an operator; None for nothing.

        For `plain`, see :class:`RedistributionNode`.
        """
        redistribution = Redistribution(self._number, self.rank, have, wanted, np.dtype(dtype), fill, one_gradient,
                                        operator.name,
                            differentiable, operator.number)
        self._number += 1
        self.redistributions.append(redistribution)
        if not redistribution.takes_part:
            return None
        node = self._make_node(redistribution, differentiable)
        self._nodes.append(node)
        self.uses_token = True
        self._token, taken = node.symbol(self._token, given if redistribution.source is not None else None, plain)
        # Else Embedding would be asked for a gradient of ids.
        return taken if taken is None or differentiable else mx.sym.BlockGrad(taken)

    def _head(self, entry: Entry, wanted: List[Dict[int, Box]]) -> Any:
        found = [self._head_box(entry, boxes) for boxes in wanted]
        if len(found) == 1:
            return found[0]
        first, second = (boxes[self.rank] for boxes in wanted[:2])
        return mx.sym.concat(*found, dim=next(at for at, one_range in enumerate(first) if one_range != second[at]))

    def _head_box(self, entry: Entry, wanted: Dict[int, Box]) -> Any:
        if entry[0] in self.graph.fixed:
            return self._constant(entry, wanted[self.rank])
        have = self._layouts[entry]
        if have.gives(wanted) and len(set(wanted.values())) == len(wanted):
            return self._sources.give(self._local[entry])
        given = self._sources.give(self._local[entry]) if entry in self._local else None
        found = self.redistribute(given, have, wanted, self.graph.dtypes[entry], self.graph.operators[entry[0]], 0.0,
                              entry[0] in self._flowing, True, self.is_plain(entry))
        return found if found is None else self._nodes[-1].ending(found)

    def _with_own_gradient(self, entry: Entry, made: Any) -> Any:
        """The symbol of an output, a copy of a sum: its gradient is that of its addends, too, and where memory stays,
        MXNet gives an addend that is a weight the gradient of the first step, in all steps.
        """
        operator = self.graph.operators[entry[0]]
        is_sum = operator.op == 'null' or rule_of(operator).shares_gradient
        return mx.sym.identity(made) if is_sum and made is self._local.get(entry) else made

    # -- parameters and constants ----------------------------------------------------------------------------------

    def _parameter(self, operator: Operator) -> Any:
        """The input that a weight or a running average is."""
        if operator.number not in self._fixed:
            self._fixed[operator.number] = mx.sym.var(operator.name, dtype=self.graph.dtypes[operator.number, 0])
        return self._fixed[operator.number]

    def _constant(self, entry: Entry, box: Box) -> Any:
        """A box of a weight, or of what depends on weights alone, for one more reader."""
        made = self._made_of_weights(entry, box)
        return self._sources.give(made) if entry in self._mixed else made

    def _made_of_weights(self, entry: Entry, box: Box) -> Any:
        operator = self.graph.operators[entry[0]]
        if operator.op == 'null':
            held = self.shards.weights.boxes(operator.name)[self.rank]
            return self._box_of(entry, self._parameter(operator), box, held)
        if operator.op in CONSTANTS:
            attrs = {key: value for key, value in operator.attrs.items() if not key.startswith('__')}
            attrs.update(shape=str(shape_of(box)), dtype=str(self.graph.dtypes[entry]))
            return symbol_function(operator.op)(**attrs)
        if is_elementwise(operator):
            attrs = {key: value for key, value in operator.attrs.items() if not key.startswith('__')}
            return symbol_function(operator.op)(self._constant(operator.inputs[0], box), **attrs)
        if entry[0] not in self._fixed:
            given = [self._constant(source, full(self.graph.shapes[source])) for source in operator.inputs]
            attrs = {key: value for key, value in operator.attrs.items() if not key.startswith('__')}
            self._fixed[entry[0]] = symbol_function(operator.op)(*given, name=operator.name, **attrs)
        made = self._fixed[entry[0]]
        made = made[entry[1]] if len(made.list_outputs()) > 1 else made
        return self._box_of(entry, made, box, full(self.graph.shapes[entry]))

    def _box_of(self, entry: Entry, made: Any, box: Box, held: Box) -> Any:
        if box == held:
            return made
        return _slice(self._sources.give(made) if entry in self._mixed else made, slices_in(box, held))

    def constant(self, operator: Operator, what: str, values: np.ndarray) -> Any:
        """An input that belongs to an operator alone, and that no script gives."""
        name = 'mxhybrid_%s_of_%d' % (what, operator.number)  # several operators may have one name
        assert name not in self.constants, name
        self.constants[name] = values
        return mx.sym.var(name, shape=values.shape, dtype=values.dtype)

    # -- running averages ------------------------------------------------------------------------------------------

    def average(self, parameter: Operator, value: Any, momentum: float) -> None:
        """Have the backward pass update a running average with what a call of a layer computes."""
        self._statistics.setdefault(parameter.number, []).append((mx.sym.BlockGrad(value), momentum))

    def _updated(self, parameter: Operator, calls: List[Tuple[Any, float]]) -> Updated:
        name = 'mxhybrid_next_of_%d' % parameter.number
        self.averages[name] = parameter.name
        dtype, box = self.graph.dtypes[parameter.number, 0], self.shards.weights.boxes(parameter.name)[self.rank]
        following = mx.sym.var(name, shape=shape_of(box), dtype=dtype)
        return Updated(following, self._parameter(parameter), calls, dtype, size_of(box))


def _slice(made: Any, where: Tuple[slice, ...]) -> Any:
    return mx.sym.slice(made, begin=tuple(part.start for part in where), end=tuple(part.stop for part in where))


