"""What parts of operators have in common that take the same time: parts that differ in their position are one."""
import collections
import functools
import hashlib
import json
from typing import Any, Dict, List, Mapping, Optional, Tuple

import mxnet as mx
import numpy as np

from ...parallel.ops.graph import Graph, Operator, geometry_of
from ...parallel.ops.registry import indices, rule_of
from ...parallel.ops.rule import OperatorPart
from ...parallel.sharding.box import shape_of
from ...parallel.sharding.split import PartPlace
from .local_program import LocalProgram, ProgramInput, operators_with_gradients
from .single_operator import (
    blocked_operators,
    can_be_blocked,
    degrees_around,
    placeholder_split,
    single_operator_program,
)


@functools.lru_cache(maxsize=None)
def _name_of(dtype: np.dtype) -> str:
    """NumPy puts it together each time."""
    return dtype.name


class ProfileKeys:
    """Of the parts of one graph.

    Parameters
    ----------
    graph : Graph
    composed : dict
        As for :class:`mxhybrid.parallel.runtime.rank_program.Program`.
    flows, frozen : set of str
        Inputs through which gradients go back, and parameters that have none.
    """

    def __init__(self, graph: Graph, composed: Mapping[str, Any], flows: Any = (), frozen: Any = ()):
        self._graph, self._composed = graph, dict(composed)
        self._learning = operators_with_gradients(graph, flows, frozen)
        self._blocked = blocked_operators(graph)
        self._fixed: Dict[int, Any] = {}
        #: Gradients that come back to each output, which are summed.
        self._gradients = collections.Counter(graph.heads)
        for one in graph.computing:
            if one.number in self._learning:
                self._gradients.update(entry for at, entry in enumerate(one.inputs) if at != indices(one))

    def operator_key(self, one: Operator) -> Any:
        """What operators have in common of which parts at the same place have the same key."""
        graph = self._graph
        inputs = [self._source(source) if source in graph.fixed and not graph.is_parameter(source)
                  else [source in self._learning and at != indices(one), source in self._blocked]
                  for at, (source, _) in enumerate(one.inputs)]
        return geometry_of(graph, one), json.dumps([inputs, self._summed(one), self.has_backward(one)])

    def key(self, one: Operator, place: PartPlace, part: Optional[OperatorPart] = None) -> str:
        """The key of a part, of which the rule says `part`, if that is known."""
        graph, part = self._graph, part or rule_of(one).part(self._graph, one, place)
        attrs = {key: value for key, value in one.attrs.items() if not key.startswith('__')}
        attrs.update({key: str(value) for key, value in part.attrs.items()})
        inputs: List[Any] = []
        for place_of_input, (entry, box) in enumerate(zip(one.inputs, part.inputs)):
            if box is None:
                inputs.append(None)
            elif entry[0] in graph.fixed and not graph.is_parameter(entry[0]):
                inputs.append(self._source(entry[0]))
            else:
                shape, dtype = shape_of(box), graph.dtypes[entry]
                inputs.append([shape, _name_of(dtype), entry[0] in self._learning and place_of_input != indices(one),
                               entry[0] in self._blocked and can_be_blocked(shape, dtype)])
        told = [one.op, sorted(attrs.items()), inputs, one.outputs, self._summed(one)]
        composed = self._composed.get(one.op)
        if part.build is not None:
            told.append([graph.inputs(one), shape_of(place.box), place.addends])
        elif composed is not None and composed.applies(graph, one, placeholder_split(graph.shape(one), place)):
            told.append(degrees_around(graph.shape(one), place))
        return '%s %s' % (one.op, hashlib.sha256(json.dumps(told).encode()).hexdigest()[:20])

    def program(self, one: Operator, place: PartPlace, whole: Optional[PartPlace] = None) -> LocalProgram:
        """The program of a part, or of a piece of the `whole` one."""
        return single_operator_program(self._graph, one, place, self._learning, self._blocked, self._composed, whole)

    def gradient_sums(self, one: Operator, place: PartPlace) -> List[LocalProgram]:
        """What sums the gradients of a part's outputs, where several operators read one."""
        boxes, found = rule_of(one).part(self._graph, one, place).outputs, []
        for output, count in self._summed(one):
            shape, dtype = shape_of(boxes[output]), self._graph.dtypes[one.number, output]
            is_blocked = one.number in self._blocked and can_be_blocked(shape, dtype)
            given = ProgramInput(shape, dtype, False, is_blocked=is_blocked)
            names = ['gradient%d' % at for at in range(count)]
            symbol = mx.sym.add_n(*[mx.sym.var(name, shape=shape, dtype=dtype) for name in names], name='sum')
            found.append(LocalProgram(symbol, dict.fromkeys(names, given)))
        return found

    def _summed(self, one: Operator) -> List[Tuple[int, int]]:
        """Outputs to which several gradients come back, and how many."""
        counts = [(output, self._gradients[one.number, output]) for output in range(one.outputs)]
        return [pair for pair in counts if pair[1] > 1 and one.number in self._learning]

    def has_backward(self, one: Operator) -> bool:
        """Whether an operator has a backward pass."""
        return one.number in self._learning

    def _source(self, number: int) -> Any:
        """What is computed from weights alone, or a weight."""
        if number not in self._fixed:
            one = self._graph.operators[number]
            attrs = sorted(item for item in one.attrs.items() if not item[0].startswith('__'))
            self._fixed[number] = [one.op, attrs, self._graph.shape(one), number in self._learning,
                                   [self._source(source) for source, _ in one.inputs]]
        return self._fixed[number]
