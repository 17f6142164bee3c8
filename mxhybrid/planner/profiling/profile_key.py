"""Keys of profiles: shards of operators that take the same time have the same key, whatever their position is."""
import collections
import functools
import hashlib
import json
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

import mxnet as mx
import numpy as np

from ...parallel.ops.graph import Graph, Operator, geometry_of
from ...parallel.ops.learning import learning_operators
from ...parallel.ops.registry import collective_of, indices, rule_of
from ...parallel.ops.rule import OperatorShard
from ...parallel.sharding.box import shape_of
from ...parallel.sharding.split import OutputShard
from .local_program import LocalProgram, ProgramInput, can_be_blocked
from .roofline import COLLECTIVE
from .single_operator import blocked_operators, degrees_around, placeholder_split, single_operator_program


@functools.lru_cache(maxsize=None)
def _name_of(dtype: np.dtype) -> str:
    """Return the name of a type, which NumPy composes at each access."""
    return dtype.name


class ProfileKeys:
    """Keys and programs of the shards of one graph.

    - `collectives`: as for :class:`mxhybrid.parallel.runtime.rank_program.Program`.
    - `gradient_inputs`, `frozen`: inputs that receive gradients, and parameters that receive none.
    """

    def __init__(self, graph: Graph, collectives: Mapping[str, Any], gradient_inputs: Any = (), frozen: Any = ()):
        self._graph, self._collectives = graph, dict(collectives)
        self._with_gradients = learning_operators(graph, frozen, gradient_inputs)
        self._blocked = blocked_operators(graph)
        self._fixed: Dict[int, Any] = {}
        #: The number of gradients that come back to each output; several of them are summed.
        self._gradients = collections.Counter(graph.heads)
        for operator in graph.computing:
            if operator.number in self._with_gradients:
                self._gradients.update(entry for position, entry in enumerate(operator.inputs)
                                       if position != indices(operator))

    def operator_key(self, operator: Operator) -> Any:
        """Return a key of an operator: where it is equal, shards at the same place have the same :meth:`key`."""
        graph = self._graph
        inputs = [self._source(source) if source in graph.fixed and not graph.is_parameter(source)
                  else [source in self._with_gradients and position != indices(operator), source in self._blocked]
                  for position, (source, _) in enumerate(operator.inputs)]
        return geometry_of(graph, operator), json.dumps([inputs, self._summed(operator), self.has_backward(operator)])

    def key(self, operator: Operator, output_shard: OutputShard, operator_shard: Optional[OperatorShard] = None) -> str:
        """Return the key of a shard; `operator_shard` is the result of the operator's rule for it, if that is known."""
        graph = self._graph
        operator_shard = operator_shard or rule_of(operator).shard(graph, operator, output_shard)
        attrs = operator.settings
        attrs.update({key: str(value) for key, value in operator_shard.attrs.items()})
        inputs: List[Any] = []
        for position, (entry, box) in enumerate(zip(operator.inputs, operator_shard.inputs)):
            if box is None:
                inputs.append(None)
            elif entry[0] in graph.fixed and not graph.is_parameter(entry[0]):
                inputs.append(self._source(entry[0]))
            else:
                shape, dtype = shape_of(box), graph.dtypes[entry]
                inputs.append([shape, _name_of(dtype),
                               entry[0] in self._with_gradients and position != indices(operator),
                               entry[0] in self._blocked and can_be_blocked(shape, dtype)])
        content = [operator.op, sorted(attrs.items()), inputs, operator.outputs, self._summed(operator)]
        if operator_shard.build is not None:
            content.append([graph.inputs(operator), shape_of(output_shard.box), output_shard.partials])
        elif self._is_collective(operator, output_shard):
            content.append(degrees_around(graph.shape(operator), output_shard))
        return '%s %s' % (self.kind(operator, output_shard),
                          hashlib.sha256(json.dumps(content).encode()).hexdigest()[:20])

    def kind(self, operator: Operator, output_shard: OutputShard) -> str:
        """Return the kind of a shard, the first word of its key: times of one kind are estimated from each other.

        Ranks that compute an operator together compute it by other operators than a rank alone, which may take many
        times as long.
        """
        return operator.op + COLLECTIVE * self._is_collective(operator, output_shard)

    def _is_collective(self, operator: Operator, output_shard: OutputShard) -> bool:
        collective, shape = collective_of(self._collectives, operator), self._graph.shape(operator)
        return collective is not None and collective.applies(self._graph, operator,
                                                             placeholder_split(shape, output_shard))

    def blocked_outputs(self) -> Set[int]:
        """Return the operators whose first outputs are in a blocked layout in a program without redistributions."""
        return {number for number in self._blocked if can_be_blocked(self._graph.array_shapes[number, 0],
                                                                     self._graph.dtypes[number, 0])}

    def program(self, operator: Operator, output_shard: OutputShard, whole: Optional[OutputShard] = None
                ) -> LocalProgram:
        """Return the program of a shard, or of a scaled shard of the `whole` one."""
        return single_operator_program(self._graph, operator, output_shard, self._with_gradients, self._blocked,
                                       self._collectives, whole)

    def gradient_sums(self, operator: Operator, output_shard: OutputShard) -> List[LocalProgram]:
        """Return the programs that sum the gradients of a shard's outputs, where several operators read one."""
        boxes, programs = rule_of(operator).shard(self._graph, operator, output_shard).outputs, []
        for output, count in self._summed(operator):
            shape, dtype = shape_of(boxes[output]), self._graph.dtypes[operator.number, output]
            is_blocked = operator.number in self._blocked and can_be_blocked(shape, dtype)
            gradient = ProgramInput(shape, dtype, False, is_blocked=is_blocked)
            names = ['gradient%d' % number for number in range(count)]
            symbol = mx.sym.add_n(*[mx.sym.var(name, shape=shape, dtype=dtype) for name in names], name='sum')
            programs.append(LocalProgram(symbol, dict.fromkeys(names, gradient)))
        return programs

    def _summed(self, operator: Operator) -> List[Tuple[int, int]]:
        """Return the outputs that receive several gradients, with the number of these."""
        counts = [(output, self._gradients[operator.number, output]) for output in range(operator.outputs)]
        return [pair for pair in counts if pair[1] > 1 and operator.number in self._with_gradients]

    def has_backward(self, operator: Operator) -> bool:
        """Return whether an operator has a backward pass."""
        return operator.number in self._with_gradients

    def _source(self, number: int) -> Any:
        """Return a description of a weight, or of an operator that reads only weights."""
        if number not in self._fixed:
            operator = self._graph.operators[number]
            attrs = sorted(operator.settings.items())
            self._fixed[number] = [operator.op, attrs, self._graph.shape(operator), number in self._with_gradients,
                                   [self._source(source) for source, _ in operator.inputs]]
        return self._fixed[number]
