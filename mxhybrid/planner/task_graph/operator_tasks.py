"""The tasks of operators and of the redistributions between them, as the splits of the operators say.

Objects that depend on the same splits are made once; :mod:`mxhybrid.planner.task_graph.step_tasks` puts them together.
"""
import functools
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ...parallel.ops.graph import Entry, Operator, geometry_of
from ...parallel.ops.registry import indices
from ...parallel.ops.rule import OperatorShard, with_range
from ...parallel.sharding.box import Box, shape_of
from ...parallel.sharding.layout import Layout, owners
from ...parallel.sharding.split import OutputShard, Split
from ...parallel.sharding.sum_steps import sum_pieces
from ..cluster.machine_model import Machine
from ..simulator.native_backend import planner_library
from .array_layouts import ArrayLayouts, Conversions
from .dataflow import SCRIPT, Dataflow
from .dynamic_tables import DynamicTable, add_table_tasks
from .memo import Memo
from .operator_shards import OperatorShards, ShardedOperator, SplitOperator
from .redistribution import RankBoxes, Redistribution, Transfers, boxes_by_rank, interned_boxes
from .task_builder import Endpoints, TaskBuilder, TaskSubgraph, compute_tasks
from .transfer_tasks import TransferTasks
from .weight_tasks import WeightArrays, WeightTasks

#: The share of a collective operator's time before its shards exchange data: one pass over its input of about two and a
#: half.
_SHARE_BEFORE_REDISTRIBUTION = 0.4


class Flow:
    """The redistributions of an output to its readers.

    - `redistribution_of`: by number of a reader and index of its input: the index of its redistribution; None where
      each rank holds what it reads.
    - `subgraphs`: the tasks that were built so far: those of the output under False, those of its gradient under True.
    """

    def __init__(self) -> None:
        self.redistributions: List[Redistribution] = []
        self.redistribution_of: Dict[Tuple[int, int], Optional[int]] = {}
        self.subgraphs: Dict[bool, TaskSubgraph] = {}


class OperatorTimes(NamedTuple):
    """The times of a network's operators."""

    #: Returns the seconds of an operator's shard, forward and backward, on the core that operators were timed on.  They
    #: are the same for shards that read and make boxes of the same shapes.  The last argument is the shard by the
    #: operator's rule.
    shard_time: Callable[[Operator, OutputShard, OperatorShard], Tuple[float, float]]
    #: Returns a key of an operator: shards of operators with the same key take the same time.
    alike: Callable[[Operator], Any]
    #: The conversions between layouts of arrays.
    conversions: Conversions
    #: Returns the share of an operator's shard that is bound by arithmetic; memory bounds the rest.
    arithmetic_share: Callable[[Operator, OperatorShard], float]


class OperatorTasks:
    """The tasks of a network's operators on a machine.

    - `arrays`: the arrays that belong to each weight.
    - `tables`: the dynamic tables of the script, outside of the network.
    - `transfer_tasks`: the default is compiled.
    """

    def __init__(self, dataflow: Dataflow, machine: Machine, times: OperatorTimes,
                 arrays: WeightArrays = WeightArrays(),  # noqa: B008
                 tables: Sequence[DynamicTable] = (), transfer_tasks: Optional[TransferTasks] = None):
        self._shard_time, alike, conversions, arithmetic_share = times
        self.dataflow, self.machine = dataflow, machine
        # Without groups of cores that slow each other down it makes no difference.
        self._arithmetic_share = arithmetic_share if machine.groups else None
        self._layouts = ArrayLayouts(dataflow, conversions)
        self.graph = dataflow.graph
        self._transfer_tasks = transfer_tasks or TransferTasks(machine, planner_library())
        self.memo = Memo(machine.ranks)
        self.weights = WeightTasks(dataflow, machine, self._transfer_tasks, self.memo, self._sharded, arrays)
        self._all_ranks = range(machine.ranks)
        self._tables = tables
        #: By rank: the bytes of the rows of dynamic tables in a batch.
        self.table_bytes: np.ndarray = sum([table.worker_bytes() for table in tables], np.zeros(machine.ranks))
        numbers: Dict[Any, int] = {}
        #: A number for each class of operators with the same shards.
        self._geometry = {operator.number: numbers.setdefault(geometry_of(self.graph, operator), len(numbers))
                          for operator in self.graph.computing}
        numbers = {}
        #: A number for each class of operators with the same shards that also take the same time.
        self._alike = {operator.number: numbers.setdefault(
            (operator.number in dataflow.learning, self._layouts.key(operator.number), alike(operator)), len(numbers))
                       for operator in self.graph.computing}
        shares = dataflow.shares
        self._data_boxes = {entry: RankBoxes.from_boxes(boxes) for entry, boxes in shares.inputs.items()}
        self._head_boxes = {entry: RankBoxes.from_boxes(_joined_rounds(boxes))
                            for entry, boxes in shares.outputs.items()}

    # -- operators -------------------------------------------------------------------------------------------------

    def _shards(self, number: int, split: Split) -> OperatorShards:
        return self.memo.once(('shards', self._geometry[number], split.degrees, split.partials, split.copies),
                              OperatorShards, self.graph, self.graph.operators[number], split)

    def _sharded(self, number: int, split: Split) -> ShardedOperator:
        return self.memo.once(('sharded', self._geometry[number], split), lambda: ShardedOperator(
            self._shards(number, split), split, functools.partial(interned_boxes, self.memo)))

    def _seconds(self, number: int, split: Split, backward: bool) -> np.ndarray:
        """Return the seconds of each shard, in the order of the split's ranks."""
        return self.memo.once(('seconds', self._alike[number], split.degrees, split.partials, split.copies),
                              self._shard_seconds, number, split)[int(backward)]

    def _shard_seconds(self, number: int, split: Split) -> np.ndarray:
        shards, operator = self._shards(number, split), self.graph.operators[number]
        if self._layouts.is_part_of_norm(number, split):
            return np.zeros((2, len(shards.kinds)))
        times = np.array([self._shard_time(operator, output_shard, shard) for output_shard, shard in shards.different])
        if shards.inner is not None:
            times += [self._layouts.conversion_seconds(number, shape_of(output_shard.box))
                      for output_shard, _ in shards.different]
        return times.T[:, shards.kinds]

    def _arithmetic(self, number: int, split: Split) -> Optional[np.ndarray]:
        """Return the share of each shard that is bound by arithmetic, in the order of the split's ranks."""
        if self._arithmetic_share is None:
            return None
        return self.memo.once(('arithmetic', self._geometry[number], split.degrees, split.partials, split.copies),
                              self._shares_of_arithmetic, number, split)

    def _shares_of_arithmetic(self, number: int, split: Split) -> np.ndarray:
        assert self._arithmetic_share is not None
        shards, operator = self._shards(number, split), self.graph.operators[number]
        return np.array([self._arithmetic_share(operator, shard) for _, shard in shards.different])[shards.kinds]

    def seconds(self, number: int, split: Split) -> np.ndarray:
        """Return the seconds of each shard of an operator, forward and backward together."""
        seconds = self._seconds(number, split, False)
        return seconds + self._seconds(number, split, True) if number in self.dataflow.learning else seconds

    def rank_seconds(self, splits: Mapping[int, Split]) -> np.ndarray:
        """Return the seconds of all shards, forward in the first row and backward in the second, by rank."""
        seconds = np.zeros((2, self.machine.ranks))
        for number, split in splits.items():
            for backward in (False, True)[:1 + (number in self.dataflow.learning)]:
                seconds[int(backward), list(split.ranks)] += self._seconds(number, split, backward)
        return seconds

    def makes_blocked(self, number: int, split: Split) -> bool:
        """Return whether the output of an operator is in a blocked layout, which redistributions convert."""
        return self._layouts.is_converted((number, 0), split, number)

    def operator(self, number: int, split: Split) -> SplitOperator:
        """Return an operator with a split."""
        return self.memo.once(('operator', self._alike[number], split), self._operator, number, split)

    def _operator(self, number: int, split: Split) -> SplitOperator:
        machine, ranks = self.machine, np.array(split.ranks)
        output_bytes = np.zeros(machine.ranks)
        output_bytes[ranks] = self._shards(number, split).output_bytes
        load = np.bincount(machine.core[ranks], self.seconds(number, split) / machine.speed[ranks],
                           len(machine.resources))
        return SplitOperator(split, load, output_bytes)

    def compute(self, number: int, operator: SplitOperator, backward: bool) -> TaskSubgraph:
        """Return the tasks of an operator, forward or backward."""
        if backward not in operator.subgraphs:
            operator.subgraphs[backward] = self._compute(number, operator.split, backward)
        return operator.subgraphs[backward]

    def _compute(self, number: int, split: Split, backward: bool) -> TaskSubgraph:
        sharded, seconds = self._sharded(number, split), self._seconds(number, split, backward)
        kind, inner = 'backward' if backward else 'forward', sharded.shards.inner
        if inner is None:
            subgraph = self.memo.once(('compute', kind, split.ranks), compute_tasks, self.machine, kind, split.ranks)
            work = seconds / self.machine.speed[sharded.ranks]
            return subgraph._replace(content=subgraph.content.with_work(work, self._arithmetic(number, split)))
        share_before = 1 - _SHARE_BEFORE_REDISTRIBUTION if backward else _SHARE_BEFORE_REDISTRIBUTION
        held, needed = sharded.on_ranks(inner.held), sharded.on_ranks(inner.needed)
        return self._transfer_tasks.collective_operator(
            kind, sharded.ranks, seconds * share_before, seconds * (1 - share_before),
            self._transfers(held, False, needed), inner.itemsize)

    # -- redistributions -------------------------------------------------------------------------------------------

    def _held_boxes(self, entry: Entry, split: Optional[Split]) -> RankBoxes:
        """Return the boxes of an output that ranks make, or of data that ranks are given."""
        return self._data_boxes[entry] if split is None else self._sharded(entry[0], split).output_boxes(entry[1])

    def flow(self, entry: Entry, operators: Sequence[Optional[SplitOperator]]) -> Flow:
        """Return the redistributions of an output, given its producer and then its readers; None for the script."""
        key = ('flow', entry, *[None if operator is None else operator.id for operator in operators])
        splits = [None if operator is None else operator.split for operator in operators]
        return self.memo.once(key, self._flow, entry, splits)

    def _flow(self, entry: Entry, splits: Sequence[Optional[Split]]) -> Flow:
        flow, producer = Flow(), splits[0]
        held, partial = self._held_boxes(entry, producer), producer is not None and producer.partials > 1
        known: Dict[Any, Optional[int]] = {}
        for (number, input_index), split in zip(self.dataflow.consumers[entry], splits[1:]):
            if split is None:
                needed, fill, is_index = self._head_boxes[entry], 0.0, False
            else:
                sharded = self._sharded(number, split)
                needed, fill = sharded.input_boxes(input_index), sharded.shards.fills[input_index]
                is_index = input_index == indices(self.graph.operators[number])
            is_head = number == SCRIPT
            key = needed.id, fill, is_index, is_head
            if key not in known:
                known[key] = None
                if not self._is_local(held, partial, needed, is_head):
                    has_gradient = not is_index and entry[0] in self.dataflow.flowing and (
                        entry in self.dataflow.with_gradients)
                    known[key] = len(flow.redistributions)
                    flow.redistributions.append(self._redistribution(
                        held, partial, needed, has_gradient, is_head, entry,
                        self._layouts.is_converted(entry, producer, number)))
            flow.redistribution_of[number, input_index] = known[key]
        return flow

    def _is_local(self, held: RankBoxes, partial: bool, needed: RankBoxes, is_head: bool) -> bool:
        """Return whether each rank holds what it needs, as in
        :class:`mxhybrid.parallel.runtime.rank_program.Program`.
        """
        if partial:
            return False
        is_head = is_head and not self.dataflow.own_outputs
        coverage = self.memo.once(('coverage', held.id, needed.id), self._transfer_tasks.coverage, held, needed)
        return coverage == 2 and len(set(needed.by_rank.values())) == len(needed.ranks) if is_head else coverage > 0

    def _redistribution(self, held: RankBoxes, partial: bool, needed: RankBoxes, has_gradient: bool, is_head: bool,
                        entry: Optional[Entry] = None, is_converted: bool = False) -> Redistribution:
        pieces = None if not partial or entry is None else self._sum_pieces(held, needed, entry)
        key = held.id, partial, needed.id, has_gradient, is_head, None if pieces is None else pieces.id, is_converted
        return self.memo.once(('redistribution',) + key, self._make_redistribution, key, held, needed, pieces)

    def _make_redistribution(self, key: Tuple[Any, ...], held: RankBoxes, needed: RankBoxes,
                             pieces: Optional[RankBoxes]) -> Redistribution:
        _, partial, _, has_gradient, is_head, _, is_converted = key
        gradient_ranks: Iterable[int] = () if not has_gradient else (
            owners(needed.by_rank).values() if is_head else needed.ranks.tolist())
        gathered = None if pieces is None else self._transfers(pieces, False, needed)
        conversions = (self._layouts.array_seconds(held, self.machine.speed),
                       self._layouts.array_seconds(needed, self.machine.speed)) if is_converted else None
        return Redistribution(held, needed, self._transfers(held, partial, needed if pieces is None else pieces),
                              np.array(sorted(gradient_ranks), np.int32), key, pieces, gathered, conversions)

    def _sum_pieces(self, held: RankBoxes, needed: RankBoxes, entry: Entry) -> Optional[RankBoxes]:
        """Return the pieces of a sum that is made in two steps; None for one step."""
        shape, itemsize = self.graph.shapes[entry], self.graph.dtypes[entry].itemsize
        # A cache cannot know the result None.
        pieces: Tuple[RankBoxes, ...] = self.memo.once(('sum pieces', held.id, needed.id, shape, itemsize),
                                                       self._make_sum_pieces, held, needed, shape, itemsize)
        return pieces[0] if pieces else None

    def _make_sum_pieces(self, held: RankBoxes, needed: RankBoxes, shape: Tuple[int, ...], itemsize: int
                         ) -> Tuple[RankBoxes, ...]:
        boxes = sum_pieces(Layout(shape, held.by_rank, True), needed.by_rank, itemsize)
        return () if boxes is None else (boxes_by_rank(self.memo, boxes),)

    def _transfers(self, held: RankBoxes, partial: bool, needed: RankBoxes) -> Transfers:
        return self.memo.once(('transfers', held.id, partial, needed.id), self._transfer_tasks.transfers, held, partial,
                              needed)

    def redistribution_tasks(self, entry: Entry, flow: Flow, back: bool) -> TaskSubgraph:
        """Return the tasks of the redistributions of an output, or with `back` of its gradient."""
        if back not in flow.subgraphs:
            units = [(number, redistribution) for number, redistribution in enumerate(flow.redistributions)
                     if len(redistribution.gradient_ranks) or not back]
            itemsize = self.graph.dtypes[entry].itemsize
            key = ('redistribution', itemsize, back) + tuple((number, redistribution.key)
                                                             for number, redistribution in units)
            flow.subgraphs[back] = self.memo.once(key, self._transfer_tasks.redistributions, units, itemsize, back)
        return flow.subgraphs[back]

    # -- inputs and outputs of micro-batches ---------------------------------------------------------------------------

    def read_boxes(self, number: int, split: Split, input_index: int) -> Dict[int, Box]:
        """Return the box of an input that each rank with a shard of an operator reads."""
        return self._sharded(number, split).input_boxes(input_index).by_rank

    def made_boxes(self, entry: Entry, split: Split) -> Dict[int, Box]:
        """Return the box of an output that each rank with a shard of its operator makes."""
        return self._held_boxes(entry, split).by_rank

    def moved(self, held: Dict[int, Box], needed: Dict[int, Box], itemsize: int, back: bool) -> TaskSubgraph:
        """Return the tasks that send an array to the ranks that need it, or with `back` its gradient back."""
        first, last = (boxes_by_rank(self.memo, boxes) for boxes in (held, needed))
        key = 'moved', first.id, last.id, itemsize, back
        return self.memo.once(key, lambda: self._transfer_tasks.redistributions(
            [(0, self._redistribution(first, False, last, back, False))], itemsize, back))

    # -- the step --------------------------------------------------------------------------------------------------

    def script(self, idle: Tuple[int, ...] = ()) -> TaskSubgraph:
        """Return the tasks of the training loop at the beginning of a step, and of the rows of dynamic tables.

        The entries of unit 0 are its own work, those of unit 1 the start of the computation on each rank.  If a rank of
        a host is idle, because it has no operators, the scripts of other ranks run on its core, beside their operators.
        """
        return self.memo.once(('script', idle), self._script, idle)

    def _script(self, idle: Tuple[int, ...]) -> TaskSubgraph:
        tasks, cost = TaskBuilder(self.machine), self.machine.cluster.costs['step']
        seconds = cost.seconds(len(self.dataflow.trained), 0)
        loop = [tasks.add('step', rank, -1, 0.0, latency=seconds * float(self.machine.shared[rank]))
                if rank not in idle and self.machine.has_idle_core(rank, idle)
                else tasks.spend('step', rank, seconds) for rank in self._all_ranks]
        # The latency is that of the last rank on a core: the others do not compute meanwhile.
        core = self.machine.core
        starts = [tasks.add('step', rank, -1, 0.0, latency=cost.latency_s, after=[
            loop[other] for other in np.flatnonzero(core == core[rank])]) for rank in self._all_ranks]
        ends = add_table_tasks(tasks, self.machine, self._tables, len(self.dataflow.tables), starts)
        numbers = np.arange(2 * self.machine.ranks, dtype=np.int32)
        entries = Endpoints(numbers // self.machine.ranks, numbers % self.machine.ranks,
                            np.array(loop + starts, np.int32))
        return tasks.subgraph(entries, Endpoints.by_rank(dict(enumerate(ends))))

    def load(self, subgraphs: Sequence[TaskSubgraph]) -> np.ndarray:
        """Return the work of each resource, in its units, without high-priority tasks, which delay no others."""
        return self._transfer_tasks.load([subgraph.content for subgraph in subgraphs])


def _joined_rounds(rounds: Sequence[Dict[int, Box]]) -> Dict[int, Box]:
    """Return one box for each rank that is as large as its boxes of several rounds of samples."""
    first = rounds[0]
    if len(rounds) == 1:
        return first
    joined = {}
    for rank, box in first.items():
        axis = next(axis for axis, axis_range in enumerate(box) if axis_range != rounds[1][rank][axis])
        low, high = box[axis]
        joined[rank] = with_range(box, axis, (len(rounds) * low, len(rounds) * high))
    return joined
