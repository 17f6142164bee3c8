"""The weights and constants that the graph of a rank reads, as symbols."""
import os
from typing import Any, Dict, Optional, Tuple

import mxnet as mx
import numpy as np

from ...native.symbols import CONSTANTS, part_of, symbol_function
from ..ops.fixed_shards import shard_of_fixed
from ..ops.graph import Entry, Operator
from ..ops.registry import is_elementwise, rule_of
from ..ops.rule import OperatorShard
from ..sharding.box import Box, full, shape_of, slices_in
from .network_shards import NetworkShards
from .recomputed_segment import Inside


class ParameterSymbols:
    """The inputs of a rank's graph that are weights, running averages or constants, and operators on them alone."""

    def __init__(self, shards: NetworkShards, rank: int):
        self.shards, self.graph, self.rank = shards, shards.graph, rank
        #: Symbols of weights and of operators on weights alone, by operator number and box; the box is None for whole
        #: arrays.
        self._fixed: Dict[Tuple[int, Optional[Box]], Any] = {}
        #: Inputs of the graph that are parameters or constants, by name.
        self._variables: Dict[str, Any] = {}
        #: The segment that is being built, if any.
        self._inside: Optional[Inside] = None
        self._sources = Readers()
        #: Entries read by operators that cannot add their gradients to those of others, see :class:`Readers`.
        self._mixed = {entry for operator in self.graph.operators if not rule_of(operator).adds_weight_gradients
                       for entry in operator.inputs}
        self.constants: Dict[str, np.ndarray] = {}

    def _parameter(self, operator: Operator) -> Any:
        """Return the input of the graph that is a weight or a running average."""
        key = operator.number, None
        if key not in self._fixed:
            weight = self._variable(operator.name, dtype=self.graph.dtypes[operator.number, 0])
            if (operator.number, 0) in self.graph.factors:
                weight = mx.sym.reshape(weight, shape=shape_of(self.shards.weights.boxes(operator.name)[self.rank]))
            self._fixed[key] = weight
        return self._fixed[key]

    def _constant(self, entry: Entry, box: Box) -> Any:
        """Return a box of a weight, or of an operator on weights alone, for one more reader."""
        symbol = self._from_weights(entry, box)
        return self._sources.give(symbol) if entry in self._mixed else symbol

    def _from_weights(self, entry: Entry, box: Box) -> Any:
        operator = self.graph.operators[entry[0]]
        if operator.op == 'null':
            held_box = self.shards.weights.boxes(operator.name)[self.rank]
            return self._box_of(entry, self._parameter(operator), box, held_box)
        if operator.op in CONSTANTS:
            return symbol_function(operator.op)(**{**operator.settings, 'shape': str(shape_of(box)),
                                                   'dtype': str(self.graph.dtypes[entry])})
        attrs, substitute = operator.settings, rule_of(operator).substitute(self.graph, operator)
        if is_elementwise(operator):
            read = [self._constant(operator.inputs[0], box)]
            return symbol_function(operator.op)(*read, **attrs) if substitute is None else substitute(read, None, attrs)
        shard = shard_of_fixed(self.graph, operator, box)
        if shard is not None:
            if (entry[0], box) not in self._fixed:
                self._fixed[entry[0], box] = self._shard_of_weights(operator, shard)
            return self._fixed[entry[0], box]
        if (entry[0], None) not in self._fixed:
            inputs = [self._as_array(source, self._constant(source, full(self.graph.shapes[source])))
                      for source in operator.inputs]
            self._fixed[entry[0], None] = (
                symbol_function(operator.op)(*inputs, name=operator.name, **attrs) if substitute is None else
                substitute([mx.sym.identity(symbol) for symbol in inputs], operator.name, attrs))
        symbol = self._fixed[entry[0], None]
        symbol = symbol[entry[1]] if len(symbol.list_outputs()) > 1 else symbol
        if entry in self.graph.factors:
            symbol = mx.sym.reshape(symbol, shape=self.graph.shapes[entry])
        return self._box_of(entry, symbol, box, full(self.graph.shapes[entry]))

    def _shard_of_weights(self, operator: Operator, shard: OperatorShard) -> Any:
        """Return the symbol of a shard of an operator on weights alone."""
        weights = [self._constant(source, read) for source, read in zip(operator.inputs, shard.inputs)
                   if read is not None]
        if shard.build is not None:  # it may read a weight several times
            weights = [mx.sym.identity(symbol) for symbol in weights]
        return shard.symbol(operator, weights, operator.name)

    def _as_array(self, entry: Entry, symbol: Any) -> Any:
        """Return the symbol of a whole array without factors of its dimensions."""
        return mx.sym.reshape(symbol, shape=self.graph.array_shapes[entry]) if entry in self.graph.factors else symbol

    def _box_of(self, entry: Entry, symbol: Any, box: Box, held_box: Box) -> Any:
        if box == held_box:
            return symbol
        return part_of(self._sources.give(symbol) if entry in self._mixed else symbol, shape_of(held_box),
                       slices_in(box, held_box))

    def constant(self, operator: Operator, role: str, values: np.ndarray) -> Any:
        """Return an input of the graph with constant values, for one operator."""
        name = 'mxhybrid_%s_of_%d' % (role, operator.number)  # several operators may have one name
        assert name not in self.constants or self._inside is not None, name
        self.constants[name] = values
        return self._variable(name, shape=values.shape, dtype=values.dtype)

    def _variable(self, name: str, **attributes: Any) -> Any:
        """Return the input of the graph that is a parameter or a constant; segments read the same one."""
        if name not in self._variables:
            self._variables[name] = mx.sym.var(name, **attributes)
        return self._variables[name]


def sum_in_place_cap() -> int:
    """Return the lowest number of gradients that MXNet adds up in place."""
    return int(os.environ.get('MXNET_EXEC_INPLACE_GRAD_SUM_CAP', 8))


class Readers:
    """Gives a symbol to few readers, so that MXNet does not add up their gradients in place; further ones read a
    copy.

    MXNet adds up the gradients of a symbol in place if it has many readers (AggregateGradient of its
    graph_executor.cc).  Operators that overwrite the array instead of adding to it lose the gradients of the other
    readers: clip, mean, cumsum and linalg.gemm2 of MXNet 1.9.1 do so with ``static_alloc``.
    """

    def __init__(self) -> None:
        #: The most readers of a symbol besides its next copy, so that MXNet does not add up their gradients in place.
        self._most = max(1, sum_in_place_cap() - 2)
        #: By the id of a symbol: the symbol, the symbol or copy that its next reader gets, and the readers of that.
        self._reader_counts: Dict[int, Tuple[Any, Any, int]] = {}

    def give(self, symbol: Any) -> Any:
        """Return the symbol, or a copy of it, for one more reader."""
        _, source, count = self._reader_counts.get(id(symbol), (symbol, symbol, 0))
        if count == self._most:
            source, count = mx.sym.identity(source), 0
        # The symbol is kept, or another one could have its id.
        self._reader_counts[id(symbol)] = symbol, source, count + 1
        return source
