"""The inputs of a rank's shards: arrays that it has, slices of them, and results of redistributions."""
from collections import Counter
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import mxnet as mx
import numpy as np

from ...kernels.operators import JointNorm
from ...native.symbols import part_of
from ..ops.graph import Entry, Operator
from ..ops.learning import entries_with_gradients
from ..ops.registry import rule_of
from ..redistribution.redistribution import Redistribution
from ..sharding.box import Box, contains, full, overlap, shape_of, slices_in
from ..sharding.layout import Layout, Movement
from ..sharding.sum_steps import steps_between
from .network_shards import NetworkShards
from .parameter_symbols import ParameterSymbols, sum_in_place_cap

#: Name of the first token.
TOKEN = 'mxhybrid_token'


#: Makes the node of a redistribution, given whether gradients go back.  A node has the methods `symbol`, `joint_norm`,
#: `ending` and `release` of :class:`~mxhybrid.parallel.redistribution.redistribution_operator.RedistributionOperator`.
MakeNode = Callable[[Redistribution, bool], Any]


class FetchedInputs(ParameterSymbols):
    """Gives the shards of a rank their inputs, and makes redistributions where any rank lacks elements."""

    def __init__(self, shards: NetworkShards, rank: int, make_node: MakeNode, first: int):
        super().__init__(shards, rank)
        self._make_node, self._number = make_node, first
        self._token = mx.sym.var(TOKEN, dtype='float32')
        self.uses_token = False
        self._layouts: Dict[Entry, Layout] = {}
        self._local: Dict[Entry, Any] = {}
        self._fetched: Dict[Any, Any] = {}
        #: Operators through which gradients may go back; those of them that lead to a trained weight or data.
        self._flowing: Set[int] = set()
        self._learning: Set[int] = set()
        self.redistributions: List[Redistribution] = []
        self._readers = Counter([entry for operator in self.graph.operators
                                 for entry in operator.inputs] + self.graph.heads)
        self._nodes: List[Any] = []
        self._with_gradients = entries_with_gradients(self.graph)

    def fetch(self, entry: Entry, needed: Dict[int, Box], fill: float = 0.0, as_index: bool = False) -> Any:
        """Return the symbol of the box of an output that this rank needs; None if it needs none.

        There is a redistribution if any rank needs an element that it does not have.
        """
        if entry[0] in self.graph.fixed:
            return self._constant(entry, needed[self.rank]) if self.rank in needed else None
        layout = self._layouts[entry]
        if layout.gives(needed):
            return self._sources.give(self._local[entry]) if self.rank in needed else None
        key = entry, tuple(sorted(needed.items())), fill, as_index
        if key not in self._fetched:
            nothing_moves = not layout.partial and all(
                rank in layout.boxes and contains(layout.boxes[rank], box) for rank, box in needed.items())
            self._fetched[key] = self._sliced(entry, layout.boxes, needed) if nothing_moves else \
                self._redistributed(entry, layout, needed, fill, as_index)
        fetched = self._fetched[key]
        return None if fetched is None else self._sources.give(fetched)

    def _sliced(self, entry: Entry, held: Dict[int, Box], needed: Dict[int, Box]) -> Any:
        """Return the slice of this rank's array that it needs; None if it needs none."""
        if self.rank not in needed:
            return None
        return part_of(self._sources.give(self._local[entry]), shape_of(held[self.rank]),
                       slices_in(needed[self.rank], held[self.rank]))

    def _redistributed(self, entry: Entry, layout: Layout, needed: Dict[int, Box], fill: float, as_index: bool) -> Any:
        operator = self.graph.operators[entry[0]]
        differentiable = entry[0] in self._flowing and entry in self._with_gradients and not as_index
        local = self._sent(entry)
        number = self._number
        steps = steps_between(layout, needed, self.graph.dtypes[entry].itemsize)
        movement = Movement(layout, needed, self.graph.dtypes[entry], fill, differentiable=differentiable)
        received = self.redistribute(local, movement, operator, self.is_plain(entry) or not differentiable)
        if steps[-1][0].partial and fill and received is not None:
            received = self._filled(operator, entry, number, needed[self.rank], fill, received)
        return received

    def _sent(self, entry: Entry) -> Any:
        """Return the symbol of this rank's part for a redistribution; None if it has none."""
        if entry not in self._local:
            return None
        symbol = self._sources.give(self._local[entry])
        return mx.sym.identity(symbol) if self._shares_gradient_of_input(entry) else symbol

    def _shares_gradient_of_input(self, entry: Entry) -> bool:
        """Return whether an output is a sum that may have one gradient array with an input of the network."""
        pending = [entry[0]] if self.graph.operators[entry[0]].op != 'null' else []  # see RedistributionOperator.symbol
        while pending:
            operator = self.graph.operators[pending.pop()]
            if operator.op == 'null' and operator.number in self._flowing:
                return True
            if operator.op != 'null' and rule_of(operator).shares_gradient:
                pending += {number for number, _ in operator.inputs}
        return False

    def _filled(self, operator: Operator, entry: Entry, number: int, box: Box, fill: float, received: Any) -> Any:
        """Return the sum of partial sums that this rank receives, with `fill` for the zeros beyond the tensor."""
        inside = overlap(box, full(self.graph.shapes[entry]))
        if inside == box:
            return received
        outside = np.ones(shape_of(box), self.graph.dtypes[entry])
        if inside is not None:
            outside[slices_in(inside, box)] = 0
        mask, values = (self.constant(operator, '%s_%d' % (what, number), array)
                        for what, array in (('outside', outside), ('fill', np.full_like(outside, fill))))
        # The gradient of a sum would be the array of the sum's own gradient.
        return mx.sym.where(mask, values, received)

    def is_plain(self, entry: Entry) -> bool:
        """Return whether the gradient of an output is needed, and is not a sum of many terms, which MXNet adds up in
        place (AggregateGradient of its graph_executor.cc); a collective operator reads its input twice.
        """
        return self._inside is None and entry[0] in self._learning and 2 * self._readers[entry] < sum_in_place_cap()

    def redistribute(self, local: Any, movement: Movement, operator: Operator, plain: bool = False) -> Any:
        """Return the symbol that this rank receives by a redistribution that all ranks make, or by two (see
        :mod:`mxhybrid.parallel.sharding.sum_steps`); None if it receives nothing.

        For `plain`, see :meth:`.RedistributionOperator.symbol`.
        """
        if self._inside is not None:
            plain = False
            movement = movement._replace(differentiable=movement.differentiable and self._inside.is_again)
        steps = steps_between(movement.layout, movement.needed, np.dtype(movement.dtype).itemsize)
        for number, (held, pieces) in enumerate(steps, 1):
            step = movement._replace(layout=held, needed=pieces)
            if number < len(steps):
                step = step._replace(fill=0.0, one_gradient=False)
            local = self._redistribute_once(local, plain, Redistribution(self._number, self.rank, step, operator.name,
                                                                         operator.number))
        return local

    def _redistribute_once(self, local: Any, plain: bool, redistribution: Redistribution) -> Any:
        """Return the symbol that this rank receives by one redistribution."""
        differentiable = redistribution.differentiable
        node = self._make_node(redistribution, differentiable) if redistribution.takes_part else None
        self._note(redistribution, node)
        if node is None:
            return None
        self._token, received = node.symbol(self._token, local if redistribution.source is not None else None, plain)
        # Otherwise it would request a gradient of its readers, which Embedding does not have of indices.
        return received if received is None or differentiable else mx.sym.BlockGrad(received)

    def joint_norm(self, data: Any, parameters: Any, layout: Layout, needed: Dict[int, Box], operator: Operator,
                   norm: JointNorm) -> Optional[Tuple[Any, Any]]:
        """Return the normalized data and the statistics of a BatchNorm that makes the redistribution of its statistics;
        None if there is no such operator.
        """
        redistribution = Redistribution(self._number, self.rank, Movement(layout, needed, 'float32'), operator.name,
                                        operator.number)
        node = self._make_node(redistribution, True)
        symbols = node.joint_norm(self._token, data, parameters, norm)
        if symbols is None:
            node.release()
            return None
        self._note(redistribution, node)
        self._token, normalized, statistics = symbols
        return normalized, statistics

    def _note(self, redistribution: Redistribution, node: Any) -> None:
        """Note a redistribution, and its node in the graph if this rank takes part in it."""
        self._number += 1
        self.redistributions.append(redistribution)
        if node is not None:
            self._nodes.append(node)
            self.uses_token = True
