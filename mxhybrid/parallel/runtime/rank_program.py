"""The program of a rank: its shards of all operators, and the redistributions between them, as one graph."""
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Type

import mxnet as mx

from ...kernels.operators import Statistics
from ...native.symbols import has_gradient, joined_along, part_of
from ..ops.graph import Entry, Operator, merged_shape
from ..ops.learning import asks_for_gradient, leads_to, learning_operators
from ..ops.registry import collective_of, indices, rule_of
from ..ops.rule import Collective, OperatorShard
from ..plans.recompute import Segment
from ..rules.pooling import halves_images
from ..sharding.box import Box, shape_of, size_of
from ..sharding.layout import Layout, Movement
from .engine_threads import CallingThread, SegmentThreads
from .fetched_inputs import TOKEN, FetchedInputs, MakeNode
from .network_shards import NetworkShards
from .parameter_symbols import Readers
from .recomputed_operator import RecomputedOperator
from .recomputed_segment import MASK, Inside, drawn_masks, in_order, joined, with_mask
from .running_averages import Statistic, Updated, symbol_of, updates_of

#: Name of the input of one element that all calls share.
SHARED = 'mxhybrid_shared'

#: Flags with which MXNet compiles a program: shapes never change, so that the engine runs small operators in bulk.
COMPILED: List[Tuple[str, Any]] = [('static_alloc', True), ('static_shape', True)]


class ProgramSpec(NamedTuple):
    """The computation that the programs of all ranks make together."""

    shards: NetworkShards
    #: The box of each data input that each rank is given.
    inputs: Dict[Entry, Dict[int, Box]]
    #: The boxes of each output of the network that each rank returns, concatenated; some ranks may return nothing.
    outputs: Dict[Entry, List[Dict[int, Box]]]
    #: Builders of operators that ranks compute together, by the operators' names.
    collectives: Mapping[str, Type[Collective]]
    #: Data through which gradients go back.
    gradient_inputs: Any = ()
    #: Parameters that have no gradients.
    frozen: Any = ()
    #: Operators whose activations are computed again in the backward pass.
    segments: Sequence[Segment] = ()
    #: Whether forward passes may begin before the backward passes of earlier ones have ended, as in a pipeline.  Then
    #: segments have redistributions of other numbers when they are computed again.
    overlaps: bool = True


class Program(FetchedInputs):
    """The graph that a rank computes.

    - `first`: the number of the first redistribution.
    - `on_failure`: ends the job because of an error in a segment.

    Attributes:

    - `symbol`: outputs: an element that keeps backward passes in order, the network's outputs, updates of running
      averages, the token of the last redistribution, and elements of weights that are not read.
    - `leading`: the number of outputs of `symbol` before those of the network.
    - `averages`: running averages by the input whose gradient is their next value.
    - `constants`: inputs of `symbol` besides data and parameters.
    - `recomputes`: whether segments are computed again in the backward pass, on any rank.
    - `redistributions`: all redistributions, in the order in which they are made, also those in which this rank takes
      no part.
    """

    def __init__(self, spec: ProgramSpec, rank: int, make_node: MakeNode, first: int,
                 on_failure: Callable[[BaseException], None] = lambda error: None):
        super().__init__(spec.shards, rank, make_node, first)
        self._collectives, segments = spec.collectives, spec.segments
        self._learning = learning_operators(self.graph, spec.frozen, spec.gradient_inputs)
        #: Outputs of segments, in the layouts that they have there, by entry.
        self._stacked: Dict[Entry, Any] = {}
        self._on_failure, self._overlaps, self.recomputes = on_failure, spec.overlaps, bool(segments)
        self._threads: Optional[SegmentThreads] = None
        #: Data inputs of this rank through which gradients go back.
        self._data_with_gradients: Set[int] = set()
        self._statistics: Dict[int, List[Tuple[Statistic, float]]] = {}
        #: Operators that learn, and are asked for the gradients of their outputs.
        self._asked: Set[int] = set()
        self.averages: Dict[str, str] = {}
        self._recomputed: List[RecomputedOperator] = []
        self._in_segments = {number for segment in segments for number in segment.operators}
        #: Outputs of operators that the producers of their inputs also compute.
        self._skipped: Dict[int, Any] = {}
        #: Entries whose shapes alone an operator reads.
        self._shapes_read: List[Entry] = []
        for operator in in_order(self.graph, segments):
            if isinstance(operator, Segment):
                self._segment(operator)
            elif operator.number in self.graph.fixed:
                if self.graph.is_parameter(operator.number):
                    self._flowing.add(operator.number)
                    if operator.number in self._learning:
                        self._asked.add(operator.number)
                self._pass_on(operator)
            elif operator.op == 'null':
                self._data(operator, spec.inputs[operator.number, 0], operator.name in spec.gradient_inputs)
            else:
                self._operator(operator)
        heads = [self._with_own_gradient(entry, symbol) for entry in self.graph.heads
                 for symbol in [self._head(entry, spec.outputs[entry])] if symbol is not None]
        self.outputs = len(heads)
        last = [self._nodes[-1].ending(self._token)] if self.uses_token else []
        updates = updates_of([self._updated(self.graph.operators[number], calls)
                              for number, calls in self._statistics.items()])
        self._updates = len(updates)
        ends = heads + updates + last
        leading = [self._leading()] if (updates or self.uses_token) and not self._overlaps else []
        self.leading = len(leading)
        # The token shows whether segments may still be called, see call_pool.py.
        unused = [mx.sym.identity(self._token)] if self._recomputed and not (self.uses_token or self._overlaps) else []
        all_outputs = leading + ends + self._unread(ends) + unused
        #: None if this rank has no part in the network, and no weights.
        self.symbol: Any = mx.sym.Group(all_outputs) if all_outputs else None

    def _leading(self) -> Any:
        """Return an element of the data with a gradient, if such data comes first in the network, otherwise that of an
        array which all calls share.

        MXNet runs the backward passes of several calls in the order of the first inputs that have gradients, and the
        order has to be the same on all ranks.  In one process that input is a weight, so that the last call comes
        first, or data, so that the first call does.
        """
        first = next((operator for operator in self.graph.operators
                      if operator.op == 'null' and operator.number in self._learning), None)
        if first is not None and not self.graph.is_parameter(first.number):
            return _first_element(self._sources.give(self._local[first.number, 0]))
        return mx.sym.identity(mx.sym.var(SHARED, dtype='float32'))

    def _element(self, weight: Operator) -> Any:
        """Return the first element of this rank's box of a weight."""
        shape = shape_of(self.shards.weights.boxes(weight.name)[self.rank])
        return part_of(self._parameter(weight), shape, [slice(0, 1)] * len(shape))

    def _unread(self, ends: List[Any]) -> List[Any]:
        """Return an element of each weight, and of each data input with a gradient, that this rank holds but none of
        these outputs depends on.

        Another rank may compute a copy, or an operator may read the shape alone.  The backward pass gives the gradients
        of these inputs zeros because it reads the elements.
        """
        used, elements = {name for symbol in ends for name in symbol.list_inputs()}, []
        for operator in self.graph.operators:
            if operator.number in self._data_with_gradients and operator.name not in used:
                elements.append(_first_element(self._local[operator.number, 0]))
            boxes = self.shards.weights.boxes(operator.name) if self.graph.is_parameter(operator.number) else {}
            if self.rank in boxes and operator.name not in used and operator.name not in self.graph.auxiliary:
                elements.append(self._element(operator))
        # A loss returns a gradient even if no operator reads its values, for example if one reads its shape alone.
        return elements + [_first_element(self._local[entry]) for entry in self._shapes_read
                           if rule_of(self.graph.operators[entry[0]]).is_loss and entry[0] in self._learning
                           and entry in self._local]

    @property
    def token_position(self) -> int:
        """The position, after the :attr:`leading` outputs, of the token of the last redistribution, if there is any."""
        return self.outputs + self._updates

    def forget(self) -> None:
        """Release the memory and the threads of the program, which is not run again, once all operations are done."""
        mx.nd.waitall()  # segments of passes that have begun still call their threads
        for thread in self._threads or ():
            thread.close()
        self.release()

    def release(self) -> None:
        """Release the memory of the program, whose redistributions are done, and which is not run again.

        MXNet keeps the segments of passes that have begun, and these keep their threads.
        """
        for node in self._nodes:
            node.release()
        for segment in self._recomputed:
            segment.drop()
        self._threads = None

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
            self._asked.add(operator.number)

    def _pass_on(self, operator: Operator) -> None:
        if leads_to(operator, self._flowing):
            self._flowing.add(operator.number)
        if asks_for_gradient(operator, self._asked):
            self._asked.add(operator.number)

    def learns(self, operator: Operator) -> bool:
        """Return whether the backward pass comes to an operator."""
        return operator.number in self._learning

    def updates_averages(self, operator: Operator) -> bool:
        """Return whether MXNet's backward pass comes to an operator that has running averages."""
        return operator.number in self._asked

    def rectifier_of(self, operator: Operator) -> Optional[Operator]:
        """Return the relu that alone reads an operator, and has the same shards; None if there is none."""
        reader, shards = self._only_reader(operator), self.shards.output_shards
        if reader is None or shards[reader.number] != shards[operator.number]:
            return None
        is_relu = reader.op == 'relu' or reader.op == 'Activation' and reader.get('act_type') == 'relu'
        return reader if is_relu else None

    def pooling_of(self, operator: Operator) -> Optional[Operator]:
        """Return the pooling that alone reads an operator, halves the rows and columns of its images, and whose shards
        read no other rank's; None if there is none.
        """
        reader, shards = self._only_reader(operator), self.shards.output_shards
        if reader is None or not halves_images(self.graph, reader) or \
                shards[reader.number].keys() != shards[operator.number].keys():
            return None
        for rank, output_shard in shards[operator.number].items():
            if self.shards.shard(reader, rank).inputs[0] != output_shard.box or \
                    any(length % 2 for length in shape_of(output_shard.box)[2:]):
                return None
        return reader

    def _only_reader(self, operator: Operator) -> Optional[Operator]:
        """Return the operator that alone reads the first output of an operator, outside of segments that are computed
        again; None if there is none.
        """
        readers = [reader for reader in self.graph.computing if (operator.number, 0) in reader.inputs]
        is_only = len(readers) == 1 and self._readers[operator.number, 0] == 1
        return readers[0] if is_only and readers[0].number not in self._in_segments else None

    def skip(self, operator: Operator, output: Any) -> None:
        """Note that the producer of an operator's input also computes the operator, whose output is `output`."""
        self._skipped[operator.number] = output

    def _operator(self, operator: Operator) -> None:
        used = indices(operator)
        self._pass_on(operator)
        if operator.number in self._skipped:
            self._layouts[operator.number, 0] = self.shards.layout(operator, 0)
            self._local[operator.number, 0] = self._skipped[operator.number]
            return
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
                shared.append(self._readers[entry] > 1 or self._shares_gradient_of_input(entry))
        for output in range(operator.outputs):
            self._layouts[operator.number, output] = self.shards.layout(operator, output)
        collective = collective_of(self._collectives, operator)
        is_joint = collective is not None and collective.applies(self.graph, operator,
                                                                 self.shards.splits[operator.number])
        if is_joint or self.rank in shards and shards[self.rank].build is not None:
            # The shard may read an input several times, which :class:`Readers` has not counted; a compiled operator may
            # not write the gradient of an input of the graph.
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
        if collective is not None:
            collective.complete(self, operator)

    def _compute(self, operator: Operator, shard: OperatorShard, inputs: List[Any]) -> None:
        if self._inside is not None and MASK % operator.number in self._inside.masks:
            symbol = with_mask(operator, inputs[0], self.graph.dtypes[operator.number, 0])
        else:
            symbol = shard.symbol(operator, inputs, operator.name)
            if shard.build is None and not has_gradient(operator.op, len(inputs),
                                                        tuple(shard.attributes(operator).items())):
                # MXNet compiles no graph in which a gradient goes back to it, although nobody asks for that.  If it may
                # not be zero, the network is not trained (untrainable.py).
                symbol = mx.sym.Group([mx.sym.BlockGrad(each) for each in symbol])
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
                self._operator(operator)  # the rank keeps none of its arrays
            return
        masks = drawn_masks(self.shards, self.rank, operators)
        first = self._number
        forward = self._build_inside(operators, masks, False)
        after = self._number
        if not self._overlaps:
            self._number = first  # a redistribution of a new number would need buffers of its own
        again = self._build_inside(operators, masks, True)
        assert self._number - after == (after - first) * self._overlaps, segment
        if self._threads is None:
            self._threads = SegmentThreads(CallingThread('mxhybrid-segment'), CallingThread('mxhybrid-again'))
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

    def _build_inside(self, operators: List[Operator], masks: Dict[str, Any], is_again: bool) -> Inside:
        """Return the operators of this rank in a segment, as symbols of the segment's inputs."""
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

    def _given_to_segment(self, name: str, inside: Inside, masks: Dict[str, Any]) -> Any:
        """Return the symbol of an input of a segment."""
        if name == TOKEN:
            return self._token
        if name in self._variables:
            return self._variables[name]
        if name in masks:
            return masks[name]
        entry = inside.local.entries_by_name[name]
        if entry in self._stacked:
            return self._sources.give(self._stacked[entry])
        # Arrays in a layout of oneDNN would reach Python as freed memory, see redistribution_operator.py.
        stacked = mx.sym.stack(self._sources.give(self._local[entry]), axis=0)
        return stacked if entry[0] in self._learning else mx.sym.BlockGrad(stacked)

    # -- outputs of the network -------------------------------------------------------------------------------------

    def _head(self, entry: Entry, needed: List[Dict[int, Box]]) -> Any:
        pieces = [self._head_box(entry, boxes) for boxes in needed]
        if self.rank not in needed[0]:
            return None
        shapes, joined = [shape_of(boxes[self.rank]) for boxes in needed], pieces[0]
        shape = list(shapes[0])
        if len(pieces) > 1:
            first, second = (boxes[self.rank] for boxes in needed[:2])
            axis = next(at for at, side in enumerate(first) if side != second[at])
            joined, shape[axis] = joined_along(mx.sym, axis, pieces, shapes), sum(shape[axis] for shape in shapes)
        return mx.sym.reshape(joined, shape=merged_shape(shape, self.graph.factors[entry])
                              ) if entry in self.graph.factors else joined

    def _head_box(self, entry: Entry, needed: Dict[int, Box]) -> Any:
        if entry[0] in self.graph.fixed:
            return self._constant(entry, needed[self.rank])
        layout = self._layouts[entry]
        if layout.gives(needed) and len(set(needed.values())) == len(needed):
            return self._sources.give(self._local[entry]) if self.rank in needed else None
        movement = Movement(layout, needed, self.graph.dtypes[entry], 0.0, True, entry[0] in self._flowing)
        received = self.redistribute(self._sent(entry), movement, self.graph.operators[entry[0]], self.is_plain(entry))
        return received if received is None else self._nodes[-1].ending(received)

    def _with_own_gradient(self, entry: Entry, symbol: Any) -> Any:
        """Return the symbol of an output of the network, or a copy of it if it is a sum.

        A sum and its terms have the same gradient array.  With ``static_alloc`` MXNet would give a term that is a
        weight the gradient of the first step in all steps.
        """
        operator = self.graph.operators[entry[0]]
        is_sum = operator.op == 'null' or rule_of(operator).shares_gradient
        return mx.sym.identity(symbol) if is_sum and symbol is self._local.get(entry) else symbol

    # -- running averages ------------------------------------------------------------------------------------------

    def average(self, parameter: Operator, value: Statistic, momentum: float) -> None:
        """Let the backward pass update a running average with the statistics of a call of a layer."""
        value = value if isinstance(value, Statistics) else mx.sym.BlockGrad(value)
        self._statistics.setdefault(parameter.number, []).append((value, momentum))

    def last_statistic(self, parameter: Operator, channels: int) -> Any:
        """Return the symbol of what the last call of :meth:`average` was given for a running average."""
        return symbol_of(self._statistics[parameter.number][-1][0], channels)

    def _updated(self, parameter: Operator, calls: List[Tuple[Statistic, float]]) -> Updated:
        name = 'mxhybrid_next_of_%d' % parameter.number
        self.averages[name] = parameter.name
        dtype, box = self.graph.dtypes[parameter.number, 0], self.shards.weights.boxes(parameter.name)[self.rank]
        following = mx.sym.var(name, shape=shape_of(box), dtype=dtype)
        return Updated(following, self._parameter(parameter), calls, dtype, size_of(box))


def _first_element(symbol: Any) -> Any:
    return mx.sym.slice_axis(mx.sym.reshape(symbol, shape=(-1,)), axis=0, begin=0, end=1)
