"""The program of a rank: its shards of all operators, and the redistributions between them, as one graph."""
from collections import Counter
from typing import Any, Callable, Dict, List, Optional, Protocol, Sequence, Set, Tuple

import mxnet as mx
import numpy as np

from ...native.symbols import CONSTANTS, symbol_function
from ..ops.fixed_shards import shard_of_fixed
from ..ops.graph import Entry, Operator, merged_shape
from ..ops.learning import leads_to
from ..ops.registry import collective_of, indices, is_elementwise, is_loss, rule_of
from ..ops.rule import Collective, OperatorShard
from ..plans.recompute import Segment
from ..redistribution.redistribution import Redistribution
from ..sharding.box import Box, full, overlap, shape_of, size_of, slices_in
from ..sharding.layout import Layout
from ..sharding.sum_steps import steps_between
from .engine_threads import SegmentThreads
from .gradient_readers import Readers, sum_in_place_cap
from .network_shards import NetworkShards
from .recomputed_operator import RecomputedOperator
from .recomputed_segment import Inside, drawn_masks, in_order, joined, with_mask
from .running_averages import Updated, updates_of


class RedistributionNode(Protocol):
    """A redistribution in a graph."""

    def symbol(self, token: Any, local: Any, plain: bool = False) -> Tuple[Any, Any]:
        """Return the token after it, and the symbol that the rank receives, or None.

        `plain` says that no gradient goes back, or that the gradient of `local` is needed and never added up in place.
        """

    def ending(self, symbol: Any) -> Any:
        """Return the symbol that a graph may have as an output, for the token or a received array."""

    def forget(self) -> None:
        """Release its memory: no program calls it again."""


#: Makes the node of a redistribution, given whether gradients go back.
MakeNode = Callable[[Redistribution, bool], RedistributionNode]

#: Flags with which MXNet compiles a program: shapes never change, so that the engine runs small operators in bulk.
COMPILED: List[Tuple[str, Any]] = [('static_alloc', True), ('static_shape', True)]

#: Name of the first token.
TOKEN = 'mxhybrid_token'


class Program:
    """The graph that a rank computes.

    Parameters
    ----------
    shards : NetworkShards
    rank : int
    inputs : dict of Entry to dict of int to Box
        The box of each data input that each rank is given.
    outputs : dict of Entry to list of dict of int to Box
        The boxes of each output of the network that each rank returns, concatenated; some ranks may return nothing.
    collectives : dict of str to Collective
        What builds operators that ranks compute together, by their names.
    make_node : callable
        Makes the nodes of redistributions.
    first : int
        The number of the first redistribution.
    gradient_inputs : set of str
        Data through which gradients go back.
    frozen : set of str
        Parameters that have no gradients.
    segments : sequence of Segment
        Operators whose activations are computed again in the backward pass.
    overlaps : bool
        Whether forward passes may begin before the backward passes of earlier ones have ended, as in a pipeline.  Then
        segments have redistributions of other numbers when they are computed again.
    on_failure : callable, optional
        Ends the job because of an error in a segment.

    Attributes
    ----------
    symbol : mxnet.symbol.Symbol
        Outputs: an element that keeps backward passes in order, the network's outputs, updates of running averages, the
        token of the last redistribution, and elements of weights that are not read.
    leading : int
        The number of outputs of `symbol` before those of the network.
    averages : dict of str to str
        Running averages by the input whose gradient is their next value.
    constants : dict of str to numpy.ndarray
        Inputs of `symbol` besides data and parameters.
    recomputes : bool
        Whether segments are computed again in the backward pass, on any rank.
    redistributions : list of Redistribution
        All redistributions, in the order in which they are made, also those in which this rank takes no part.
    """

    def __init__(self, shards: NetworkShards, rank: int, inputs: Dict[Entry, Dict[int, Box]],
                 outputs: Dict[Entry, List[Dict[int, Box]]], collectives: Dict[str, Collective], make_node: MakeNode,
                 first: int, gradient_inputs: Any = (), frozen: Any = (), segments: Sequence[Segment] = (),
                 overlaps: bool = True, on_failure: Optional[Callable[[BaseException], None]] = None):
        self.shards, self.graph, self.rank = shards, shards.graph, rank
        self._collectives, self._make_node, self._number = collectives, make_node, first
        self._token = mx.sym.var(TOKEN, dtype='float32')
        self.uses_token = False
        self._layouts: Dict[Entry, Layout] = {}
        self._local: Dict[Entry, Any] = {}
        #: Symbols of weights, and of whole operators on weights alone, with None; of their shards, with the box.
        self._fixed: Dict[Tuple[int, Optional[Box]], Any] = {}
        #: Inputs of the graph that are parameters or constants, by name.
        self._variables: Dict[str, Any] = {}
        #: The segment that is being built, if any; and outputs of segments as these have them, by entry.
        self._inside: Optional[Inside] = None
        self._stacked: Dict[Entry, Any] = {}
        self._on_failure, self._overlaps, self.recomputes = on_failure, overlaps, bool(segments)
        self._threads: Optional[SegmentThreads] = None
        self._fetched: Dict[Any, Any] = {}
        self._sources = Readers()
        #: Entries read by operators that cannot add their gradients to those of others, see :class:`Readers`.
        self._mixed = {entry for operator in self.graph.operators if not rule_of(operator).adds_weight_gradients
                       for entry in operator.inputs}
        #: Operators through which gradients may go back; those of them that lead to a trained weight or data.
        self._flowing: Set[int] = set()
        self._learning: Set[int] = set()
        #: Data inputs of this rank through which gradients go back.
        self._data_with_gradients: Set[int] = set()
        self._statistics: Dict[int, List[Tuple[Any, float]]] = {}
        self.averages: Dict[str, str] = {}
        self.constants: Dict[str, np.ndarray] = {}
        self.redistributions: List[Redistribution] = []
        self._readers = Counter([entry for operator in self.graph.operators
                                 for entry in operator.inputs] + self.graph.heads)
        self._nodes: List[RedistributionNode] = []
        self._recomputed: List[RecomputedOperator] = []
        #: Entries whose shapes alone an operator reads.
        self._shapes_read: List[Entry] = []
        for operator in in_order(self.graph, segments):
            if isinstance(operator, Segment):
                self._segment(operator)
            elif operator.number in self.graph.fixed:
                if self.graph.is_parameter(operator.number):
                    self._flowing.add(operator.number)
                    if operator.name not in frozen and operator.name not in self.graph.auxiliary:
                        self._learning.add(operator.number)
                self._pass_on(operator)
            elif operator.op == 'null':
                self._data(operator, inputs[operator.number, 0], operator.name in gradient_inputs)
            else:
                self._operator(operator)
        heads = [self._with_own_gradient(entry, symbol) for entry in self.graph.heads
                 for symbol in [self._head(entry, outputs[entry])] if symbol is not None]
        self.outputs = len(heads)
        last = [self._nodes[-1].ending(self._token)] if self.uses_token else []
        updates = updates_of([self._updated(self.graph.operators[number], calls)
                              for number, calls in self._statistics.items()])
        self._updates = len(updates)
        ends = heads + updates + last
        leading = self._leading() if updates else []
        self.leading = len(leading)
        #: None if this rank has no part in the network.
        self.symbol: Any = mx.sym.Group(leading + ends + self._unread(mx.sym.Group(ends))) if ends else None

    def _leading(self) -> List[Any]:
        """Return an element of the smallest weight that learns, unless data with a gradient comes first in the network.

        MXNet runs the backward passes of several calls in the order of the first inputs that have gradients.  If that
        is a weight, which all calls share, the last call comes first; if it is data, the first call.
        """
        first = next((operator for operator in self.graph.operators
                      if operator.op == 'null' and operator.number in self._learning), None)
        if first is not None and not self.graph.is_parameter(first.number):
            return []
        sizes = [(size_of(self.shards.weights.boxes(operator.name)[self.rank]), operator.number)
                 for operator in self.graph.operators
                 if operator.number in self._learning and self.graph.is_parameter(operator.number)
                 and self.rank in self.shards.weights.boxes(operator.name) and operator.number not in self.graph.tables]
        return [self._element(self.graph.operators[min(sizes)[1]])] if sizes else []

    def _element(self, weight: Operator) -> Any:
        """Return the first element of this rank's box of a weight."""
        shape = shape_of(self.shards.weights.boxes(weight.name)[self.rank])
        return mx.sym.slice(self._parameter(weight), begin=(0,) * len(shape), end=(1,) * len(shape))

    def _unread(self, symbol: Any) -> List[Any]:
        """Return an element of each weight and of each data input with a gradient that this rank holds, but that no
        output of the symbol depends on, as where another rank computes a copy, or an operator reads the shape alone:
        so that the backward pass gives it a gradient of zeros.
        """
        used, elements = set(symbol.list_inputs()), []
        for operator in self.graph.operators:
            if operator.number in self._data_with_gradients and operator.name not in used:
                elements.append(_first_element(self._local[operator.number, 0]))
            boxes = self.shards.weights.boxes(operator.name) if self.graph.is_parameter(operator.number) else {}
            if self.rank in boxes and operator.name not in used and operator.name not in self.graph.auxiliary:
                elements.append(self._element(operator))
        # A loss returns a gradient even if no operator reads its values, as where one reads its shape alone.
        losses = [self._local[entry] for entry in self._shapes_read if self._is_loss(entry) and entry in self._local]
        return elements + [_first_element(loss) for loss in losses]

    def _is_loss(self, entry: Entry) -> bool:
        return is_loss(self.graph.operators[entry[0]]) and entry[0] in self._learning

    @property
    def token_position(self) -> int:
        """The position, after the :attr:`leading` outputs, of the token of the last redistribution, if there is any."""
        return self.outputs + self._updates

    def forget(self) -> None:
        """Release its memory: it is not run again."""
        for node in self._nodes:
            node.forget()
        for segment in self._recomputed:
            segment.forget()
        if self._threads is not None:
            self._threads.close()

    # -- data and operators ----------------------------------------------------------------------------------------

    def _data(self, operator: Operator, boxes: Dict[int, Box], has_gradient: bool) -> None:
        entry = operator.number, 0
        self._layouts[entry] = Layout(self.graph.shape(operator), boxes)
        if self.rank in boxes:
            samples = mx.sym.var(operator.name, dtype=self.graph.dtypes[entry])
            if entry in self.graph.factors:
                samples = mx.sym.reshape(samples, shape=shape_of(boxes[self.rank]))
            self._local[entry] = samples if has_gradient else mx.sym.BlockGrad(samples)
            if has_gradient:
                self._data_with_gradients.add(operator.number)
        if has_gradient:
            self._flowing.add(operator.number)
            self._learning.add(operator.number)

    def _pass_on(self, operator: Operator) -> None:
        for known in (self._flowing, self._learning):
            if leads_to(operator, known):
                known.add(operator.number)

    def learns(self, operator: Operator) -> bool:
        """Tell whether the backward pass comes to an operator."""
        return operator.number in self._learning

    def _operator(self, operator: Operator) -> None:
        used = indices(operator)
        self._pass_on(operator)
        ranks = self.shards.output_shards[operator.number]
        shards = {rank: self.shards.shard(operator, rank) for rank in ranks}
        inputs, shared = [], []
        for position, entry in enumerate(operator.inputs):
            boxes = {rank: shard.inputs[position] for rank, shard in shards.items()}
            needed = {rank: box for rank, box in boxes.items() if box is not None}
            fill = next(iter(shards.values())).fills[position]
            if not needed:
                self._shapes_read.append(entry)
            fetched = self.fetch(entry, needed, fill, position == used)
            if fetched is not None and position == used and entry[0] in self._flowing:
                # Otherwise a redistribution would request the gradient of indices, which Embedding does not have.
                fetched = mx.sym.BlockGrad(fetched)
            if self.rank in needed:
                inputs.append(fetched)
                shared.append(self._readers[entry] > 1)
        for output in range(operator.outputs):
            self._layouts[operator.number, output] = self.shards.layout(operator, output)
        collective = collective_of(self._collectives, operator)
        is_joint = collective is not None and collective.applies(self.graph, operator,
                                                                 self.shards.splits[operator.number])
        if is_joint or self.rank in shards and shards[self.rank].build is not None:
            # The shard may read an input several times, which :class:`Readers` has not counted.
            inputs = [mx.sym.identity(symbol) if is_shared else symbol for symbol, is_shared in zip(inputs, shared)]
        if collective is not None and is_joint:
            symbol = collective.build(self, operator, inputs)
            if self.rank in shards:
                self._local[operator.number, 0] = symbol
        elif self.rank in shards:
            symbol = None if collective is None else collective.build_alone(self, operator, inputs)
            if symbol is None:
                self._compute(operator, shards[self.rank], inputs)
            else:
                self._local[operator.number, 0] = symbol

    def _compute(self, operator: Operator, shard: OperatorShard, inputs: List[Any]) -> None:
        attrs = {key: value for key, value in operator.attrs.items() if not key.startswith('__')}
        attrs.update({key: str(value) for key, value in shard.attrs.items()})
        if self._inside is not None and operator.number in self._inside.masks:
            symbol = with_mask(operator, inputs[0], self.graph.dtypes[operator.number, 0])
        elif shard.build is not None:
            symbol = shard.build(inputs, operator.name, attrs)
        else:
            symbol = symbol_function(operator.op)(*inputs, name=operator.name, **attrs)
        for output in range(operator.outputs):
            self._local[operator.number, output] = symbol[output] if len(symbol.list_outputs()) > 1 else symbol

    # -- segments that are computed again --------------------------------------------------------------------------

    def _segment(self, segment: Segment) -> None:
        """Build operators that are computed again in the backward pass, as one operator."""
        operators = [self.graph.operators[number] for number in segment.operators]
        for operator in operators:
            self._pass_on(operator)
        if not any(map(self.learns, operators)):
            for operator in operators:
                self._operator(operator)  # nothing is kept of it
            return
        masks = drawn_masks(self.shards, self.rank, operators)
        first = self._number
        forward = self._build_inside(segment, operators, masks, False)
        after = self._number
        if not self._overlaps:
            self._number = first  # a redistribution of a new number would need buffers of its own
        again = self._build_inside(segment, operators, masks, True)
        assert self._number - after == (after - first) * self._overlaps, segment
        if self._threads is None:
            self._threads = SegmentThreads()
        joined_segment = joined(self, segment, forward, again, TOKEN, self._threads, self._on_failure)
        if joined_segment is None:
            return
        recomputed = joined_segment.operator
        self._recomputed.append(recomputed)
        outputs = recomputed.symbol('recompute%d' % recomputed.number, [
            self._given_to_segment(name, forward, masks) for name in recomputed.inputs])
        for entry, output in zip(joined_segment.entries, outputs):
            inner = mx.sym.SliceChannel(output, num_outputs=1, axis=0, squeeze_axis=True)
            if entry[0] in self._learning:
                self._local[entry], self._stacked[entry] = inner, output
            else:
                self._local[entry] = mx.sym.BlockGrad(inner)
        for (number, momentum), output in zip(joined_segment.statistics, outputs[len(joined_segment.entries):]):
            value = mx.sym.SliceChannel(output, num_outputs=1, axis=0, squeeze_axis=True)
            self._statistics.setdefault(number, []).append((mx.sym.BlockGrad(value), momentum))
        if joined_segment.has_token:
            self._token, self.uses_token = outputs[-1], True

    def _build_inside(self, segment: Segment, operators: List[Operator], masks: Dict[int, Any],
                      is_again: bool) -> Inside:
        """Return what this rank computes in a segment, as symbols of its inputs."""
        outside = {name: getattr(self, name) for name in Inside.REPLACED}
        self._inside = Inside(self._local, self.graph, masks, is_again)
        self._local, self._token, self.uses_token = self._inside.local, mx.sym.var(TOKEN, dtype='float32'), False
        self._fixed, self._fetched, self._sources, self._statistics = {}, {}, Readers(), {}
        self._shapes_read = []
        for operator in operators:
            self._operator(operator)
        inside, self._inside = self._inside, None
        inside.token, inside.statistics = self._token if self.uses_token else None, self._statistics
        shapes_read = self._shapes_read
        for name, value in outside.items():
            setattr(self, name, value)
        self._shapes_read += [] if is_again else shapes_read
        return inside

    def _given_to_segment(self, name: str, inside: Inside, masks: Dict[int, Any]) -> Any:
        """Return the symbol of an input of a segment."""
        if name == TOKEN:
            return self._token
        if name in self._variables:
            return self._variables[name]
        entry = inside.entry_of(name)
        if entry is None:
            return masks[inside.mask_of(name)[0]][inside.mask_of(name)[1]]
        if entry in self._stacked:
            return self._sources.give(self._stacked[entry])
        # Arrays in a layout of oneDNN would reach Python as freed memory, see redistribution_operator.py.
        stacked = mx.sym.stack(self._sources.give(self._local[entry]), axis=0)
        return stacked if entry[0] in self._learning else mx.sym.BlockGrad(stacked)

    # -- what shards read ------------------------------------------------------------------------------------------

    def fetch(self, entry: Entry, needed: Dict[int, Box], fill: float = 0.0, as_index: bool = False) -> Any:
        """Return the symbol of the box of an output that this rank needs; None if it needs none.

        There is a redistribution if any rank needs an element that it does not have.
        """
        if entry[0] in self.graph.fixed:
            return self._constant(entry, needed[self.rank]) if self.rank in needed else None
        have = self._layouts[entry]
        if have.gives(needed):
            return self._sources.give(self._local[entry]) if self.rank in needed else None
        key = entry, tuple(sorted(needed.items())), fill, as_index
        if key not in self._fetched:
            self._fetched[key] = self._sliced(entry, have, needed) or self._redistributed(entry, have, needed, fill,
                                                                                          as_index)
        fetched = self._fetched[key][0]
        return None if fetched is None else self._sources.give(fetched)

    def _sliced(self, entry: Entry, have: Layout, needed: Dict[int, Box]) -> Optional[List[Any]]:
        """Return a slice of this rank's array if every rank has all that it needs, so that nothing moves; otherwise
        None.
        """
        if have.partial or not all(rank in have.boxes and all(
                low >= start and high <= end for (low, high), (start, end) in zip(box, have.boxes[rank]))
                for rank, box in needed.items()):
            return None
        if self.rank not in needed:
            return [None]
        return [_slice(self._sources.give(self._local[entry]), slices_in(needed[self.rank], have.boxes[self.rank]))]

    def _redistributed(self, entry: Entry, have: Layout, needed: Dict[int, Box], fill: float,
                       as_index: bool) -> List[Any]:
        operator = self.graph.operators[entry[0]]
        differentiable = entry[0] in self._flowing and not as_index
        local = self._sent(entry)
        number = self._number
        steps = steps_between(have, needed, self.graph.dtypes[entry].itemsize)
        received = self.redistribute(local, have, needed, self.graph.dtypes[entry], operator, fill, differentiable,
                                     plain=self.is_plain(entry) or not differentiable)
        if steps[-1][0].partial and fill and received is not None:
            received = self._filled(operator, entry, number, needed[self.rank], fill, received)
        return [received]

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
        """Tell whether the gradient of an output is needed, and is not a sum of many, which MXNet adds up in place
        (AggregateGradient of its graph_executor.cc); a collective operator reads its input twice.
        """
        return self._inside is None and entry[0] in self._learning and 2 * self._readers[entry] < sum_in_place_cap()

    def redistribute(self, local: Any, have: Layout, needed: Dict[int, Box], dtype: Any, operator: Operator,
                     fill: float = 0.0,
                     differentiable: bool = True, one_gradient: bool = False, plain: bool = False) -> Any:
        """Return the symbol that this rank receives by a redistribution that all ranks make, or by two (see
        :mod:`mxhybrid.parallel.sharding.sum_steps`); None if it receives nothing.

        For `plain`, see :class:`RedistributionNode`.
        """
        if self._inside is not None:
            plain, differentiable = False, differentiable and self._inside.is_again
        *first_steps, (have, needed) = steps_between(have, needed, np.dtype(dtype).itemsize)
        for held, pieces in first_steps:
            local = self._redistribute_once(local, held, pieces, dtype, operator, 0.0, differentiable, False, plain)
        return self._redistribute_once(local, have, needed, dtype, operator, fill, differentiable, one_gradient, plain)

    def _redistribute_once(self, local: Any, have: Layout, needed: Dict[int, Box], dtype: Any, operator: Operator,
                           fill: float, differentiable: bool, one_gradient: bool, plain: bool) -> Any:
        """Return the symbol that this rank receives by one redistribution, see :meth:`redistribute`."""
        redistribution = Redistribution(self._number, self.rank, have, needed, np.dtype(dtype), fill, one_gradient,
                                        operator.name,
                                        differentiable, operator.number)
        self._number += 1
        self.redistributions.append(redistribution)
        if not redistribution.takes_part:
            return None
        node = self._make_node(redistribution, differentiable)
        self._nodes.append(node)
        self.uses_token = True
        self._token, received = node.symbol(self._token, local if redistribution.source is not None else None, plain)
        # Otherwise it would request a gradient of its readers, which Embedding does not have of indices.
        return received if received is None or differentiable else mx.sym.BlockGrad(received)

    def _head(self, entry: Entry, needed: List[Dict[int, Box]]) -> Any:
        pieces = [self._head_box(entry, boxes) for boxes in needed]
        if self.rank not in needed[0]:
            return None
        shape = list(shape_of(needed[0][self.rank]))
        if len(pieces) == 1:
            joined = pieces[0]
        else:
            first, second = (boxes[self.rank] for boxes in needed[:2])
            axis = next(at for at, side in enumerate(first) if side != second[at])
            joined, shape[axis] = mx.sym.concat(*pieces, dim=axis), sum(shape_of(boxes[self.rank])[axis]
                                                                        for boxes in needed)
        return mx.sym.reshape(joined, shape=merged_shape(shape, self.graph.factors[entry])
                              ) if entry in self.graph.factors else joined

    def _head_box(self, entry: Entry, needed: Dict[int, Box]) -> Any:
        if entry[0] in self.graph.fixed:
            return self._constant(entry, needed[self.rank])
        have = self._layouts[entry]
        if have.gives(needed) and len(set(needed.values())) == len(needed):
            return self._sources.give(self._local[entry]) if self.rank in needed else None
        received = self.redistribute(self._sent(entry), have, needed, self.graph.dtypes[entry],
                                     self.graph.operators[entry[0]], 0.0, entry[0] in self._flowing, True,
                                     self.is_plain(entry))
        return received if received is None else self._nodes[-1].ending(received)

    def _with_own_gradient(self, entry: Entry, symbol: Any) -> Any:
        """Return the symbol of an output of the network, or a copy of it if it is a sum.

        A sum and its terms have the same gradient array.  With ``static_alloc`` MXNet would give a term that is a
        weight the gradient of the first step in all steps.
        """
        operator = self.graph.operators[entry[0]]
        is_sum = operator.op == 'null' or rule_of(operator).shares_gradient
        return mx.sym.identity(symbol) if is_sum and symbol is self._local.get(entry) else symbol

    # -- parameters and constants ----------------------------------------------------------------------------------

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
            attrs = {key: value for key, value in operator.attrs.items() if not key.startswith('__')}
            attrs.update(shape=str(shape_of(box)), dtype=str(self.graph.dtypes[entry]))
            return symbol_function(operator.op)(**attrs)
        if is_elementwise(operator):
            attrs = {key: value for key, value in operator.attrs.items() if not key.startswith('__')}
            return symbol_function(operator.op)(self._constant(operator.inputs[0], box), **attrs)
        attrs = {key: value for key, value in operator.attrs.items() if not key.startswith('__')}
        shard = shard_of_fixed(self.graph, operator, box)
        if shard is not None:
            if (entry[0], box) not in self._fixed:
                self._fixed[entry[0], box] = self._shard_of_weights(operator, shard, attrs)
            return self._fixed[entry[0], box]
        if (entry[0], None) not in self._fixed:
            given = [self._as_array(source, self._constant(source, full(self.graph.shapes[source])))
                     for source in operator.inputs]
            self._fixed[entry[0], None] = symbol_function(operator.op)(*given, name=operator.name, **attrs)
        symbol = self._fixed[entry[0], None]
        symbol = symbol[entry[1]] if len(symbol.list_outputs()) > 1 else symbol
        if entry in self.graph.factors:
            symbol = mx.sym.reshape(symbol, shape=self.graph.shapes[entry])
        return self._box_of(entry, symbol, box, full(self.graph.shapes[entry]))

    def _shard_of_weights(self, operator: Operator, shard: OperatorShard, attrs: Dict[str, Any]) -> Any:
        """Return the symbol of a shard of an operator on weights alone."""
        weights = [self._constant(source, read) for source, read in zip(operator.inputs, shard.inputs)
                   if read is not None]
        attrs = {**attrs, **{key: str(value) for key, value in shard.attrs.items()}}
        if shard.build is not None:
            return shard.build([mx.sym.identity(symbol) for symbol in weights], operator.name, attrs)
        return symbol_function(operator.op)(*weights, name=operator.name, **attrs)

    def _as_array(self, entry: Entry, symbol: Any) -> Any:
        """Return the symbol of a whole array without factors of its dimensions."""
        return mx.sym.reshape(symbol, shape=self.graph.array_shapes[entry]) if entry in self.graph.factors else symbol

    def _box_of(self, entry: Entry, symbol: Any, box: Box, held_box: Box) -> Any:
        if box == held_box:
            return symbol
        return _slice(self._sources.give(symbol) if entry in self._mixed else symbol, slices_in(box, held_box))

    def constant(self, operator: Operator, what: str, values: np.ndarray) -> Any:
        """Return an input of the graph with constant values, for one operator."""
        name = 'mxhybrid_%s_of_%d' % (what, operator.number)  # several operators may have one name
        assert name not in self.constants or self._inside is not None, name
        self.constants[name] = values
        return self._variable(name, shape=values.shape, dtype=values.dtype)

    def _variable(self, name: str, **attributes: Any) -> Any:
        """Return the input of the graph that is a parameter or a constant; segments read the same one."""
        if name not in self._variables:
            self._variables[name] = mx.sym.var(name, **attributes)
        return self._variables[name]

    # -- running averages ------------------------------------------------------------------------------------------

    def average(self, parameter: Operator, value: Any, momentum: float) -> None:
        """Let the backward pass update a running average with the statistics of a call of a layer."""
        self._statistics.setdefault(parameter.number, []).append((mx.sym.BlockGrad(value), momentum))

    def _updated(self, parameter: Operator, calls: List[Tuple[Any, float]]) -> Updated:
        name = 'mxhybrid_next_of_%d' % parameter.number
        self.averages[name] = parameter.name
        dtype, box = self.graph.dtypes[parameter.number, 0], self.shards.weights.boxes(parameter.name)[self.rank]
        following = mx.sym.var(name, shape=shape_of(box), dtype=dtype)
        return Updated(following, self._parameter(parameter), calls, dtype, size_of(box))


def _first_element(symbol: Any) -> Any:
    return mx.sym.slice_axis(mx.sym.reshape(symbol, shape=(-1,)), axis=0, begin=0, end=1)


def _slice(symbol: Any, where: Tuple[slice, ...]) -> Any:
    return mx.sym.slice(symbol, begin=tuple(part.start for part in where), end=tuple(part.stop for part in where))


