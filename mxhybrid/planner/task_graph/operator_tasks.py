"""The tasks of a training step: what operators, exchanges and sums take, each as its splits have it.

Whatever depends on the same splits is made once; :mod:`mxhybrid.planner.task_graph.step_tasks` puts it together.
"""
import itertools
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from ...base.settings import TablePlan
from ...parallel.ops.graph import Entry, Operator, geometry_of
from ...parallel.ops.registry import indices
from ...parallel.ops.rule import OperatorPart, with_range
from ...parallel.sharding.box import Box
from ...parallel.sharding.layout import owners
from ...parallel.sharding.split import PartPlace, Split
from ...parallel.sharding.weight_layout import Weights
from .dataflow import SCRIPT, Dataflow
from .native_transfer_tasks import fastest_transfers
from .operator_shards import OperatorShards, ShardedOperator, all_of
from .redistribution import Transfers, RankBoxes, Redistribution
from .task_builder import ComputedParts, TaskSubgraph, Endpoints, Machine, TaskBuilder
from .transfer_tasks import TransferTasks

#: Seconds of an operator's part, forward and backward, on the machine of the profiles; the same for parts that read
#: and make boxes of the same shapes.  The last one is what its rule says of it.
PartTime = Callable[[Operator, PartPlace, OperatorPart], Tuple[float, float]]

_IDS = itertools.count()

#: Share of a composed operator's time before ranks tell each other what they have: one pass over its input of about
#: two and a half.
_BEFORE = 0.4

#: What is kept for plans that come back, times the number of ranks: a long search would else fill the memory.
MOST_KNOWN = 4_000_000

#: Bytes of dense gradients that are summed together, as :mod:`mxhybrid.routes.dense_buckets` has it.
BUCKET_BYTES = 2 << 20


class Flow:
    """How an output comes to those who read it.

    Attributes
    ----------
    units : list of Redistribution
    unit_of : dict of (int, int) to int or None
        By reader, and which of its inputs: the exchange that it reads; None where it reads what its rank has.
    exchanges : dict of bool to TaskSubgraph
        What was made of it: tasks of the exchanges there, under False, and back.
    """

    def __init__(self) -> None:
        self.units: List[Redistribution] = []
        self.unit_of: Dict[Tuple[int, int], Optional[int]] = {}
        self.exchanges: Dict[bool, TaskSubgraph] = {}


class SplitOperator:
    """What is made once of an operator that is split, and of those alike.

    Attributes
    ----------
    split : Split
    id : int
        Of this object, and of no other one that ever was.
    computing : numpy.ndarray
        What cores have to do for it, forward and backward, by resource.
    activations : numpy.ndarray
        Bytes of its outputs, which backward needs, by rank.
    cores : dict of bool to TaskSubgraph
        Of what was made: forward, under False, and backward.
    """

    __slots__ = ('split', 'id', 'computing', 'activations', 'cores')

    def __init__(self, split: Split, computing: np.ndarray, activations: np.ndarray):
        self.split, self.id, self.computing, self.activations = split, next(_IDS), computing, activations
        self.cores: Dict[bool, TaskSubgraph] = {}


class WeightShards:
    """A weight that ranks hold, and those of its size.

    Attributes
    ----------
    placed : RankBoxes
        What each rank holds.
    size : numpy.ndarray
        Bytes of it, and where it is trained of its gradient and what an optimizer keeps beside it, by rank.
    is_everywhere : bool
        Whether every rank holds all of it.
    """

    __slots__ = ('placed', 'size', 'is_everywhere')

    def __init__(self, placed: RankBoxes, size: np.ndarray, is_everywhere: bool):
        self.placed, self.size, self.is_everywhere = placed, size, is_everywhere


class OperatorTasks:
    """Of a network on a machine; `part_time` says what parts of operators take, and `alike` what operators have in
    common of which all parts take as long; without it, none are alike.
    """

    def __init__(self, dataflow: Dataflow, machine: Machine, part_time: PartTime, states: int = 0,
                 transfers: Optional[TransferTasks] = None, alike: Optional[Callable[[Operator], Any]] = None):
        self.dataflow, self.machine, self._part_time = dataflow, machine, part_time
        self.graph = dataflow.graph
        #: Arrays of an optimizer beside each weight.
        self.states = states
        self._transfers = transfers or fastest_transfers(machine)
        #: What was made, and what was made before that and not asked for since.
        self._known: Dict[Any, Any] = {}
        self._aged: Dict[Any, Any] = {}
        self._itemsizes = {one.name: self.graph.dtypes[one.number, 0].itemsize for one in self.graph.operators
                           if one.op == 'null'}
        #: Of whole weights.
        self.bytes_of = {name: int(np.prod(shape)) * self._itemsizes[name]
                         for name, shape in dataflow.parameters.items()}
        self._trained = set(dataflow.trained)
        self._everyone = range(machine.ranks)
        numbers: Dict[Any, int] = {}
        #: A number for each of those of which parts are the same.
        self._geometry = {one.number: numbers.setdefault(geometry_of(self.graph, one), len(numbers))
                          for one in self.graph.computing}
        numbers = {}
        #: And for those that also take as long.
        self._alike = {one.number: numbers.setdefault(
            (one.number in dataflow.learning, alike(one)) if alike else one.number, len(numbers))
                       for one in self.graph.computing}
        shares = dataflow.shares
        self._given = {entry: RankBoxes.of(boxes) for entry, boxes in shares.inputs.items()}
        self._taken = {entry: RankBoxes.of(_in_one_piece(boxes)) for entry, boxes in shares.outputs.items()}

    def _once(self, key: Any, make: Callable[..., Any], *args: Any) -> Any:
        found = self._known.get(key)
        if found is None:
            found = self._aged.get(key)
            if found is None:
                found = make(*args)
            if 2 * len(self._known) * self.machine.ranks >= MOST_KNOWN:
                self._aged, self._known = self._known, {}
            self._known[key] = found
        return found

    # -- operators -------------------------------------------------------------------------------------------------

    def _cut(self, number: int, split: Split) -> OperatorShards:
        return self._once(('cut', self._geometry[number], split.degrees, split.addends, split.copies),
                          OperatorShards, self.graph, self.graph.operators[number], split)

    def _parts(self, number: int, split: Split) -> ShardedOperator:
        return self._once(('parts', self._geometry[number], split), lambda: ShardedOperator(
            self._cut(number, split), split, self._intern))

    def _intern(self, ranks: np.ndarray, boxes: np.ndarray) -> RankBoxes:
        """Equal ones are one object, as long as they are known."""
        return self._once(('placed', ranks.tobytes(), boxes.shape, boxes.tobytes()), RankBoxes, ranks, boxes)

    def _seconds(self, number: int, split: Split, backward: bool) -> np.ndarray:
        """Of each part, in the order of the split's ranks."""
        return self._once(('seconds', self._alike[number], split.degrees, split.addends, split.copies),
                          self._part_seconds, number, split)[int(backward)]

    def _part_seconds(self, number: int, split: Split) -> np.ndarray:
        cut, one = self._cut(number, split), self.graph.operators[number]
        return np.array([self._part_time(one, place, part) for place, part in cut.different]).T[:, cut.kinds]

    def operator(self, number: int, split: Split) -> SplitOperator:
        """An operator, split."""
        return self._once(('operator', self._alike[number], split), self._operator, number, split)

    def _operator(self, number: int, split: Split) -> SplitOperator:
        activations = np.zeros(self.machine.ranks)
        activations[list(split.ranks)] = self._cut(number, split).output_bytes
        return SplitOperator(split, self._computing(number, split), activations)

    def _computing(self, number: int, split: Split) -> np.ndarray:
        ranks = np.array(split.ranks)
        seconds = self._seconds(number, split, False)
        if number in self.dataflow.learning:
            seconds = seconds + self._seconds(number, split, True)
        return np.bincount(self.machine.core[ranks], seconds / self.machine.speed[ranks], len(self.machine.resources))

    def core(self, number: int, one: SplitOperator, backward: bool) -> TaskSubgraph:
        """Tasks of an operator, forward or backward."""
        if backward not in one.cores:
            one.cores[backward] = self._core(number, one.split, backward)
        return one.cores[backward]

    def _core(self, number: int, split: Split, backward: bool) -> TaskSubgraph:
        parts, seconds = self._parts(number, split), self._seconds(number, split, backward)
        kind, told = 'backward' if backward else 'forward', parts.cut.told
        if told is None:
            return self._once(('computed', kind, split.ranks), ComputedParts, self.machine, kind, parts.ranks
                              ).taking(seconds)
        before = 1 - _BEFORE if backward else _BEFORE
        have, wanted = parts.place(told.have), parts.place(told.wanted)
        return self._transfers.composed(kind, parts.ranks, seconds * before, seconds * (1 - before),
                                        self._moved(have, False, wanted), told.itemsize)

    # -- exchanges -------------------------------------------------------------------------------------------------

    def layout(self, entry: Entry, split: Optional[Split]) -> RankBoxes:
        """Of an output of an operator, or of data."""
        return self._given[entry] if split is None else self._parts(entry[0], split).outputs(entry[1])

    def flow(self, entry: Entry, operators: Sequence[Optional[SplitOperator]]) -> Flow:
        """How an output moves, of who makes it and of who reads it; None for the script."""
        key = ('flow', entry, *[None if one is None else one.id for one in operators])
        return self._once(key, self._flow, entry, [None if one is None else one.split for one in operators])

    def _flow(self, entry: Entry, splits: Sequence[Optional[Split]]) -> Flow:
        found, maker = Flow(), splits[0]
        have, partial = self.layout(entry, maker), maker is not None and maker.addends > 1
        known: Dict[Any, Optional[int]] = {}
        for (number, place), split in zip(self.dataflow.consumers[entry], splits[1:]):
            if split is None:
                wanted, fill, as_index = self._taken[entry], 0.0, False
            else:
                parts = self._parts(number, split)
                wanted, fill = parts.inputs(place), parts.cut.fills[place]
                as_index = place == indices(self.graph.operators[number])
            key = wanted.number, fill, as_index, number == SCRIPT
            if key not in known:
                known[key] = None
                if not self._is_there(have, partial, wanted, number == SCRIPT):
                    flows = entry[0] in self.dataflow.flowing and not as_index
                    known[key] = len(found.units)
                    found.units.append(self._unit(have, partial, wanted, flows, number == SCRIPT))
            found.unit_of[number, place] = known[key]
        return found

    def _is_there(self, have: RankBoxes, partial: bool, wanted: RankBoxes, is_output: bool) -> bool:
        """Whether nothing has to be exchanged, as :class:`mxhybrid.parallel.runtime.rank_program.Program` has it."""
        if partial:
            return False
        found = self._once(('has', have.number, wanted.number), self._transfers.has, have, wanted)
        return found == 2 and len(set(wanted.by_rank.values())) == len(wanted.ranks) if is_output else found > 0

    def _unit(self, have: RankBoxes, partial: bool, wanted: RankBoxes, flows: bool, is_output: bool) -> Redistribution:
        key = have.number, partial, wanted.number, flows, is_output
        return self._once(('unit',) + key, self._make_unit, key, have, wanted)

    def _make_unit(self, key: Tuple[Any, ...], have: RankBoxes, wanted: RankBoxes) -> Redistribution:
        _, partial, _, flows, is_output = key
        answers: Iterable[int] = () if not flows else (
            owners(wanted.by_rank).values() if is_output else wanted.ranks.tolist())
        return Redistribution(have, wanted, self._moved(have, partial, wanted), np.array(sorted(answers), np.int32), key)

    def _moved(self, have: RankBoxes, partial: bool, wanted: RankBoxes) -> Transfers:
        return self._once(('moved', have.number, partial, wanted.number), self._transfers.moved, have, partial, wanted)

    def transfers(self, entry: Entry, flow: Flow, back: bool) -> TaskSubgraph:
        """The exchanges of a flow of an output, there or back."""
        if back not in flow.exchanges:
            units = [(number, unit) for number, unit in enumerate(flow.units) if len(unit.answers) or not back]
            itemsize = self.graph.dtypes[entry].itemsize
            flow.exchanges[back] = self._once(
                ('transfers', itemsize, back) + tuple((number, unit.key) for number, unit in units),
                self._transfers.exchanges, units, itemsize, back)
        return flow.exchanges[back]

    # -- weights ---------------------------------------------------------------------------------------------------

    def held(self, name: str, readers: Sequence[SplitOperator]) -> WeightShards:
        """A weight, of the operators that read it."""
        key = ('holding', name, *[one.id for one in readers])
        return self._once(key, self._holding, name, [one.split for one in readers])

    def _holding(self, name: str, splits: Sequence[Split]) -> WeightShards:
        shape = self.dataflow.parameters[name]
        needed = [(self._parts(reader.number, split).inputs(reader.place), reader.whole)
                  for reader, split in zip(self.dataflow.readers[name], splits)]
        placed = self._once(('held', shape) + tuple((placed.number, all_of_it) for placed, all_of_it in needed),
                            self._held, shape, needed)
        each = self._itemsizes[name] * (2 + self.states if name in self._trained else 1)
        return self._once(('weight', placed.number, shape, each), self._held_weight, placed, shape, each)

    def _held_weight(self, placed: RankBoxes, shape: Tuple[int, ...], each: int) -> WeightShards:
        size = np.zeros(self.machine.ranks)
        size[placed.ranks] = placed.sizes() * each
        is_everywhere = len(placed.ranks) == self.machine.ranks and bool(
            (placed.boxes == all_of(shape, placed).boxes).all())
        return WeightShards(placed, size, is_everywhere)

    def _held(self, shape: Tuple[int, ...], needed: List[Tuple[RankBoxes, bool]]) -> RankBoxes:
        first, all_of_it = needed[0]
        if len(needed) == 1 and not all_of_it and (first.boxes == first.boxes[:1]).all():
            return first  # all read the same
        weights = Weights({'': shape})
        for placed, all_of_it in needed:
            for rank, box in (all_of(shape, placed) if all_of_it else placed).by_rank.items():
                weights.need('', rank, box)
        found = RankBoxes.of(weights.boxes(''))
        return self._intern(found.ranks, found.boxes)

    def bundle(self, names: Tuple[str, ...], dense: Optional[str] = None) -> TaskSubgraph:
        """Weights that every rank holds: gradients are summed over all, by what is said, then each updates its own."""
        size = sum(self.bytes_of[name] for name in names)
        return self._once(('bundle', len(names), size, dense), self._bundle, len(names), size, dense)

    def _bundle(self, count: int, size: int, dense: Optional[str]) -> TaskSubgraph:
        machine, cluster, tasks = self.machine, self.machine.cluster, TaskBuilder(self.machine)
        update = cluster.cost('update', dense).seconds(count, size)
        if machine.ranks == 1:
            alone = {0: tasks.spend('update', 0, update)}
            return TaskSubgraph(tasks, _by_rank(alone), _by_rank(alone))
        own = cluster.cost('sum', dense)
        half = own.seconds(cluster.sum_items(count, dense), size) / 2
        give = {rank: tasks.spend('sum', rank, half, own.latency_s) for rank in self._everyone}
        before = self._summed(tasks, 'sum', list(give.values()), size)
        take = {rank: tasks.spend('sum', rank, half, after=before) for rank in self._everyone}
        last = {rank: tasks.spend('update', rank, update, after=[take[rank]]) for rank in self._everyone}
        return TaskSubgraph(tasks, _by_rank(give), _by_rank(last))

    def _summed(self, tasks: TaskBuilder, kind: str, before: List[int], size: float) -> List[int]:
        """Gradients of all ranks are summed, what they have given: what comes behind it."""
        if self.machine.hosts > 1:
            return self._all_to_all(tasks, kind, before, size)
        return [tasks.add(kind, -1, -1, 0.0, after=before, latency=self.machine.cluster.memory_latency_s)]

    def _all_to_all(self, tasks: TaskBuilder, kind: str, before: List[int], size: float) -> List[int]:
        """Hosts sum a range each, and tell each other: reduce-scatter and allgather."""
        machine = self.machine
        share = size * (machine.hosts - 1) / machine.hosts
        for _ in range(2):
            joined = tasks.add(kind, -1, -1, 0.0, after=before)
            before = [tasks.add(kind, -1, int(machine.up[host]), share, int(machine.down[host]),
                                machine.cluster.link_latency_s, after=[joined]) for host in range(machine.hosts)]
        return [tasks.add(kind, -1, -1, 0.0, after=before)]

    def part(self, name: str, held: WeightShards) -> TaskSubgraph:
        """A weight that is split: gradients are summed over those who hold the same box."""
        placed, itemsize = held.placed, self._itemsizes[name]
        return self._once(('part', placed.number, itemsize), self._transfers.group_sums, placed, itemsize)

    def table_plan(self, name: str, tables: Mapping[str, TablePlan]) -> TablePlan:
        """How rows of a table travel: as is said, or as the store does it where nothing is, in a partition for each
        server.
        """
        found = tables.get(name, TablePlan('servers'))
        if found.route != 'servers':
            return found
        return found._replace(partitions=min(found.partitions or self.machine.hosts,
                                             self.dataflow.parameters[name][0]))

    def table(self, name: str, readers: Sequence[SplitOperator], way: TablePlan, dense: Optional[str] = None) -> TaskSubgraph:
        """A weight with row_sparse gradients, of which every rank holds all: ranks push the rows of their ids to the
        servers, one on each host, and pull the rows that anyone has touched; or all rows are summed as a dense gradient
        is, with a mark for each.  Then all update those that were touched.
        """
        dense = dense if way.route == 'allreduce' else None
        splits = tuple(one.split for one in readers)
        return self._once(('table', name, splits, way, dense), self._table, name, splits, way, dense)

    def _table(self, name: str, splits: Sequence[Split], way: TablePlan, dense: Optional[str]) -> TaskSubgraph:
        machine, costs, tasks = self.machine, self.machine.cluster.costs, TaskBuilder(self.machine)
        rows, *row = self.dataflow.parameters[name]
        size = int(np.prod(row)) * self._itemsizes[name]
        given = np.zeros(machine.ranks)
        for reader, split in zip(self.dataflow.readers[name], splits):
            ids = self._parts(reader.number, split).inputs(0)
            given[ids.ranks] += ids.sizes()
        # Rows that several ids name count as often: which ids there will be is not known.
        touched = min(float(given.sum()), rows) * size
        given = np.minimum(given, rows) * float(size)
        if way.route == 'allreduce':
            moved = self._buffer_bytes(name)
            own = machine.cluster.cost('row_sum', dense)
            half = own.seconds(machine.ranks, moved) / 2
            first = {rank: tasks.spend('row_sum', rank, half, own.latency_s) for rank in self._everyone}
            before = self._summed(tasks, 'row_sum', list(first.values()), moved)
            there = {rank: tasks.spend('row_sum', rank, half, after=before) for rank in self._everyone}
        else:
            count = way.partitions or 1
            shares = self._server_shares(name, count)
            first = {rank: tasks.spend('push', rank, costs['push'].seconds(count, float(given[rank])),
                                       costs['push'].latency_s) for rank in self._everyone}
            pushed = np.bincount(machine.host, given, machine.hosts)
            before = self._by_hosts(tasks, 'push', list(first.values()), pushed * (1 - shares),
                                    (pushed.sum() - pushed) * shares)
            # Each server answers with its share of the rows, once to each host.
            before = self._by_hosts(tasks, 'pull', before, touched * shares * (machine.hosts - 1),
                                    touched * (1 - shares))
            there = {rank: tasks.spend('pull', rank, costs['pull'].seconds(count, touched), costs['pull'].latency_s,
                                       before) for rank in self._everyone}
        last = {rank: tasks.spend('update', rank, costs['update'].seconds(1, touched), after=[there[rank]])
                for rank in self._everyone}
        return TaskSubgraph(tasks, _by_rank(first), _by_rank(last))

    def _server_shares(self, name: str, partitions: int) -> np.ndarray:
        """Share of a table's rows on each host: partitions are dealt out, those of another table from the next host on.
        """
        hosts = self.machine.hosts
        place = [one for one in self.dataflow.trained if one in self.dataflow.tables].index(name)
        return np.bincount((place + np.arange(partitions)) % hosts, None, hosts) / partitions

    def _buffer_bytes(self, name: str) -> int:
        """Of the rows of a table and their marks, as :mod:`mxhybrid.routes.row_sums` has them."""
        return self.bytes_of[name] + self.dataflow.parameters[name][0] * self._itemsizes[name]

    def table_bytes(self, name: str, way: TablePlan) -> np.ndarray:
        """Bytes that the way of its rows takes beside weight and gradient, by rank."""
        return np.full(self.machine.ranks, float(self._buffer_bytes(name) if way.route == 'allreduce' else 0))

    def _by_hosts(self, tasks: TaskBuilder, kind: str, before: List[int], sent: np.ndarray, got: np.ndarray) -> List[int]:
        """Each host sends and receives so many bytes: what comes behind it."""
        machine = self.machine
        if machine.hosts > 1:
            joined = tasks.add(kind, -1, -1, 0.0, after=before)
            before = [joined] + [
                tasks.add(kind, -1, int(link[host]), float(moved[host]), -1, machine.cluster.link_latency_s,
                          after=[joined])
                for link, moved in ((machine.up, sent), (machine.down, got)) for host in range(machine.hosts)
                if moved[host]]
        return [tasks.add(kind, -1, -1, 0.0, after=before)]

    def script(self, dense: Optional[str] = None) -> TaskSubgraph:
        """What the training loop itself takes at the beginning of a step, the first unit; and behind it the begin of
        what a rank computes, the second one.
        """
        return self._once(('script', dense), self._script, dense)

    def _script(self, dense: Optional[str]) -> TaskSubgraph:
        tasks, own = TaskBuilder(self.machine), self.machine.cluster.cost('step', dense)
        seconds = own.seconds(len(self.dataflow.trained), 0)
        called = [tasks.spend('step', rank, seconds, own.latency_s) for rank in self._everyone]
        begun = [tasks.add('step', rank, -1, 0.0, after=[called[rank]]) for rank in self._everyone]
        ranks = np.arange(2 * self.machine.ranks, dtype=np.int32)
        first = Endpoints(ranks // self.machine.ranks, ranks % self.machine.ranks, np.array(called + begun, np.int32))
        return TaskSubgraph(tasks, first, _by_rank(dict(enumerate(begun))))

    def work_of(self, cores: Sequence[TaskSubgraph]) -> np.ndarray:
        """What resources have to do, in their units, but for express tasks, which are done beside others."""
        return self._transfers.work_of([core.content for core in cores])


def _by_rank(found: Dict[int, int]) -> Endpoints:
    return Endpoints.by_rank(found)


def _in_one_piece(boxes: Sequence[Dict[int, Box]]) -> Dict[int, Box]:
    """As large a box, by rank, for several that are put behind each other: rounds of samples."""
    first = boxes[0]
    if len(boxes) == 1:
        return first
    found = {}
    for rank, box in first.items():
        axis = next(at for at, one_range in enumerate(box) if one_range != boxes[1][rank][at])
        low, high = box[axis]
        found[rank] = with_range(box, axis, (len(boxes) * low, len(boxes) * high))
    return found
