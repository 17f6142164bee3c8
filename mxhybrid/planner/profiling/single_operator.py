"""A part of an operator as a program of its own: that of a network which is this operator alone.

What operators compute from weights only, as the joined weights of a recurrent layer, belongs to the operator that reads
it.
"""
import itertools
from typing import Any, Dict, Optional, Set, Tuple

import mxnet as mx

from ...native.symbols import symbol_function
from ...parallel.ops.graph import Entry, Graph, Operator
from ...parallel.ops.registry import indices
from ...parallel.runtime.rank_program import Parts
from ...parallel.sharding.box import Box, shape_of
from ...parallel.sharding.split import PartPlace, Split
from .local_program import LocalProgram, local_program


class _Around(Split):
    """A split of which one place is known: the others are beside it, wherever the tensor ends."""

    def __init__(self, place: PartPlace, degrees: Tuple[int, ...]):
        count = place.addends
        for degree in degrees:
            count *= degree
        super().__init__(degrees, range(count), place.addends)
        self._place = place

    def places(self, shape: Any, grains: Any = ()) -> Dict[int, PartPlace]:
        """As :meth:`Split.places`."""
        place, found = self._place, []
        for at in itertools.product(*map(range, self.degrees)):
            box: Box = tuple((low + step * (high - low), high + step * (high - low))
                             for step, (low, high) in zip(at, place.box))
            found += [PartPlace(box, (place.addend + addend) % place.addends, place.addends)
                      for addend in range(place.addends)]
        return dict(enumerate(found))


def degrees_around(shape: Tuple[int, ...], place: PartPlace) -> Tuple[int, ...]:
    """Into how many ranges each dimension of an output is cut, if a place is one of them."""
    return tuple(max(1 + (extent < count), round(count / extent)) for count, extent in zip(shape, shape_of(place.box)))


def placeholder_split(shape: Tuple[int, ...], place: PartPlace, whole: Optional[PartPlace] = None) -> Split:
    """A split that has a place, in the degrees of one that has the `whole` of which that is a piece."""
    return _Around(place, degrees_around(shape, whole or place))


def _index_input(one: Operator) -> Optional[Entry]:
    """Return the entry that an operator reads as indices only: it gets no gradient, whatever it comes of."""
    place = indices(one)
    if place is None or one.inputs[place] in one.inputs[:place] + one.inputs[place + 1:]:
        return None
    return one.inputs[place]


class _SingleOperator:
    """The network of one operator."""

    def __init__(self, graph: Graph, one: Operator):
        self._from = graph
        self._made: Dict[Entry, Any] = {}
        self._data: Dict[str, Tuple[int, ...]] = {}
        self._dtypes: Dict[str, Any] = {}
        #: Where what it reads comes from, by name.
        self.sources: Dict[str, Entry] = {}
        symbol = self._of(one)
        used = sorted({output for other in graph.operators for source, output in other.inputs if source == one.number}
                      | {output for source, output in graph.heads if source == one.number}) or [0]
        if one.outputs > 1:
            symbol = mx.sym.Group([symbol[output] for output in used])
        self.graph = Graph(symbol, self._data, self._dtypes)

    def _of(self, one: Operator) -> Any:
        attrs = {key: value for key, value in one.attrs.items() if not key.startswith('__')}
        return symbol_function(one.op)(*[self._symbol(entry) for entry in one.inputs], name=one.name, **attrs)

    def _symbol(self, entry: Entry) -> Any:
        if entry not in self._made:
            source = self._from.operators[entry[0]]
            if source.op != 'null' and source.number in self._from.fixed:
                made = self._of(source)
                self._made.update({(source.number, output): made[output] if source.outputs > 1 else made
                                   for output in range(source.outputs)})
            else:
                # Two operators may have one name, as where a Block is called twice.
                name = source.name if source.op == 'null' else '%s_output%d_of_%d' % (source.name, entry[1],
                                                                                      source.number)
                self.sources[name] = entry
                shape, self._dtypes[name] = self._from.shapes[entry], self._from.dtypes[entry]
                if source.number not in self._from.fixed:
                    self._data[name] = shape
                self._made[entry] = mx.sym.var(name, shape=shape, dtype=self._dtypes[name])
        return self._made[entry]


def single_operator_program(graph: Graph, one: Operator, place: PartPlace, learning: Set[int], blocked: Set[int],
                            composed: Dict[str, Any], whole: Optional[PartPlace] = None) -> LocalProgram:
    """The program of a part.

    Parameters
    ----------
    graph : Graph
    one : Operator
    place : PartPlace
    learning, blocked : set of int
        Where in `graph` gradients go back to, and what comes in a layout of oneDNN's.
    composed : dict
        As for :class:`mxhybrid.parallel.runtime.rank_program.Program`.
    whole : PartPlace, optional
        The part, where `place` is a piece of it: then it is composed as that is.
    """
    alone = _SingleOperator(graph, one)
    operator = alone.graph.computing[0]
    parts = Parts(alone.graph, {operator.number: placeholder_split(graph.shape(one), place, whole)})
    boxes = {rank: parts.part(operator, rank).inputs for rank in parts.places[operator.number]}
    inputs: Dict[Entry, Dict[int, Box]] = {}
    for at, entry in enumerate(operator.inputs):
        if entry[0] not in alone.graph.fixed:
            inputs[entry] = {rank: box for rank, every in boxes.items() for box in [every[at]] if box is not None}
    outputs = {entry: [parts.layout(operator, entry[1]).boxes] for entry in alone.graph.heads}
    learns = {name for name, entry in alone.sources.items() if entry[0] in learning and entry != _index_input(one)}
    made = local_program(parts, 0, inputs, outputs, composed, learns, set(alone.sources) - learns)
    return made._replace(inputs={
        name: value._replace(is_blocked=name in alone.sources and alone.sources[name][0] in blocked
                             and can_be_blocked(value.shape, value.dtype)) for name, value in made.inputs.items()})


#: Operators that take and give values in a layout of oneDNN's.
_KEEP_LAYOUT = {'Activation', 'Pooling', 'BatchNorm', 'elemwise_add', 'relu', '_copy', 'Concat', 'Dropout'}


def can_be_blocked(shape: Tuple[int, ...], dtype: Any) -> bool:
    """Whether oneDNN has layouts of its own for an array."""
    return 3 <= len(shape) <= 5 and dtype == 'float32'


def blocked_operators(graph: Graph) -> Set[int]:
    """Operators whose outputs are in a layout of oneDNN's, in a program without exchanges."""
    found: Set[int] = set()
    for one in graph.computing:
        if one.op == 'Convolution' or one.op in _KEEP_LAYOUT and any(
                source in found for source, _ in one.inputs):
            found.add(one.number)
    return found
