"""The tasks of a training step: what operators, exchanges and sums take, each as its splits have it.

Whatever depends on the same splits is made once; :mod:`mxhybrid.planner.step_blocks` puts it together.
"""
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..base.settings import TablePlan
from ..parallel.boxes import Box, full, shape_of, size_of
from ..parallel.composed import COMPOSED
from ..parallel.graph import Entry, Operator
from ..parallel.layout import Layout, owners
from ..parallel.rule import OperatorPart
from ..parallel.rule_table import indices, rule_of
from ..parallel.split import PartPlace, Split
from ..parallel.weights import Weights
from .flows import Moved, moved
from .machine import Machine, Tasks
from .step_graph import SCRIPT, StepGraph

#: Seconds of an operator's part, forward and backward, on the machine of the profiles.
PartTime = Callable[[Operator, PartPlace], Tuple[float, float]]

#: Share of a composed operator's time before ranks tell each other what they have: one pass over its input of about
#: two and a half.
_BEFORE = 0.4

#: What is kept for plans that come back, times the number of ranks: a long search would else fill the memory.
MOST_KNOWN = 400_000

#: Bytes of dense gradients that are summed together, as :mod:`mxhybrid.routes.dense_bundles` has it.
BUNDLE_BYTES = 2 << 20


class Unit(NamedTuple):
    """An exchange between an operator and some of those who read it."""

    have: Layout
    wanted: Dict[int, Box]
    moved: Moved
    #: Who gives gradients back; none where none flow.
    answers: Sequence[int]


class Flow:
    """How an output comes to those who read it.

    Attributes
    ----------
    units : list of Unit
    unit_of : dict of (int, int) to int or None
        By reader, and which of its inputs: the exchange that it reads; None where it reads what its rank has.
    """

    def __init__(self) -> None:
        self.units: List[Unit] = []
        self.unit_of: Dict[Tuple[int, int], Optional[int]] = {}


class Ends:
    """Tasks by unit and rank, as arrays of equal length.

    Attributes
    ----------
    units, ranks, tasks : numpy.ndarray of int
    """

    def __init__(self, found: Dict[Tuple[int, int], int]):
        self._rows = np.array([(unit, rank, at) for (unit, rank), at in found.items()], int).reshape(-1, 3)
        self.units, self.ranks, self.tasks = self._rows.T

    def of(self, unit: int) -> 'Ends':
        """Those of one unit."""
        return Ends({(one, rank): at for one, rank, at in self._rows.tolist() if one == unit})


class Core(NamedTuple):
    """Tasks; those that others have to be before, and those that come out."""

    tasks: Tasks
    first: Ends
    last: Ends


class StepModel:
    """Of a network on a machine; `part_time` says what parts of operators take."""

    def __init__(self, step_graph: StepGraph, machine: Machine, part_time: PartTime, states: int = 0):
        self.step_graph, self.machine, self._part_time = step_graph, machine, part_time
        self.graph = step_graph.graph
        #: Arrays of an optimizer beside each weight.
        self.states = states
        self._known: Dict[Any, Any] = {}
        self._itemsizes = {one.name: self.graph.dtypes[one.number, 0].itemsize for one in self.graph.operators
                           if one.op == 'null'}
        #: Of whole weights.
        self.bytes_of = {name: int(np.prod(shape)) * self._itemsizes[name]
                         for name, shape in step_graph.parameters.items()}
        self._everyone = range(machine.ranks)

    def _once(self, key: Any, make: Callable[..., Any], *args: Any) -> Any:
        found = self._known.get(key)
        if found is None:
            found = make(*args)
            if len(self._known) * self.machine.ranks >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = found
        return found

    # -- operators -------------------------------------------------------------------------------------------------

    def parts(self, number: int, split: Split) -> Dict[int, Tuple[PartPlace, OperatorPart]]:
        """What each rank has of an operator."""
        return self._once(('parts', number, split), self._parts, number, split)

    def _parts(self, number: int, split: Split) -> Dict[int, Tuple[PartPlace, OperatorPart]]:
        one = self.graph.operators[number]
        rule = rule_of(one)
        return {rank: (place, rule.part(self.graph, one, place)) for rank, place in
                split.places(self.graph.shape(one), rule.grains(self.graph, one)).items()}

    def _composition(self, one: Operator, split: Split) -> Any:
        composed = COMPOSED[True].get(one.op)
        return composed if composed is not None and composed.applies(self.graph, one, split) else None

    def operator(self, number: int, split: Split, backward: bool) -> Core:
        """Forward or backward of an operator."""
        return self._once(('operator', number, split, backward), self._operator, number, split, backward)

    def _operator(self, number: int, split: Split, backward: bool) -> Core:
        one = self.graph.operators[number]
        composed = self._composition(one, split)
        parts = self.parts(number, split)
        kind, tasks = 'backward' if backward else 'forward', Tasks(self.machine)
        seconds = {rank: self._part_time(one, place)[backward]
                   for rank, (place, _) in parts.items()}
        if composed is None:
            last = {rank: tasks.compute(kind, rank, seconds[rank]) for rank in parts}
            return Core(tasks, _by_rank(last), _by_rank(last))
        have, wanted, dtype = composed.told(self.graph, one, {rank: place.box for rank, (place, _) in parts.items()})
        before = 1 - _BEFORE if backward else _BEFORE
        first = {rank: tasks.compute(kind, rank, seconds[rank] * before) for rank in parts}
        _, told = tasks.exchange(moved(have, wanted), np.dtype(dtype).itemsize, first, dict(first))
        last = {rank: tasks.compute(kind, rank, seconds[rank] * (1 - before), [told[rank]]) for rank in parts}
        return Core(tasks, _by_rank(first), _by_rank(last))

    # -- exchanges -------------------------------------------------------------------------------------------------

    def layout(self, entry: Entry, split: Optional[Split]) -> Layout:
        """Of an output of an operator, or of data."""
        if split is None:
            return Layout(self.graph.shapes[entry], self.step_graph.shares.inputs[entry])
        return self._once(('layout', entry, split), self._layout, entry, split)

    def _layout(self, entry: Entry, split: Split) -> Layout:
        return Layout(self.graph.shapes[entry], {rank: part.outputs[entry[1]] for rank, (_, part) in
                                                 self.parts(entry[0], split).items()}, split.addends > 1)

    def flow(self, entry: Entry, splits: Tuple[Optional[Split], ...]) -> Flow:
        """How an output moves, of the splits of who makes it and of who reads it."""
        return self._once(('flow', entry, splits), self._flow, entry, splits)

    def _flow(self, entry: Entry, splits: Tuple[Optional[Split], ...]) -> Flow:
        graph, found = self.graph, Flow()
        have = self.layout(entry, splits[0])
        known: Dict[Any, Optional[int]] = {}
        for (number, place), split in zip(self.step_graph.consumers[entry], splits[1:]):
            if number == SCRIPT:
                wanted, fill, as_index = self.step_graph.shares.outputs[entry], 0.0, False
            else:
                assert split is not None
                parts = [(rank, part) for rank, (_, part) in self.parts(number, split).items()]
                boxes = {rank: part.inputs[place] for rank, part in parts}
                wanted = {rank: box for rank, box in boxes.items() if box is not None}
                fill, as_index = parts[0][1].fills[place], place == indices(graph.operators[number])
            key = tuple(sorted(wanted.items())), fill, as_index, number == SCRIPT
            if key not in known:
                known[key] = None
                if not _is_there(have, wanted, number == SCRIPT):
                    flows = entry[0] in self.step_graph.flowing and not as_index
                    answers: Iterable[int] = () if not flows else (
                        owners(wanted).values() if number == SCRIPT else wanted)
                    known[key] = len(found.units)
                    found.units.append(Unit(have, wanted, moved(have, wanted), sorted(answers)))
            found.unit_of[number, place] = known[key]
        return found

    def transfers(self, entry: Entry, splits: Tuple[Optional[Split], ...], back: bool) -> Core:
        """The exchanges of a flow, there or back."""
        return self._once(('transfers', entry, splits, back), self._transfers, entry, splits, back)

    def _transfers(self, entry: Entry, splits: Tuple[Optional[Split], ...], back: bool) -> Core:
        tasks, itemsize = Tasks(self.machine), self.graph.dtypes[entry].itemsize
        first: Dict[Tuple[int, int], int] = {}
        last: Dict[Tuple[int, int], int] = {}
        for number, unit in enumerate(self.flow(entry, splits).units):
            there, givers, takers = unit.moved, sorted(unit.have.boxes), sorted(unit.wanted)
            if back:
                there, givers, takers = there.reversed(unit.answers), sorted(unit.answers), givers
                if not givers:
                    continue
            give, take = tasks.exchange(there, itemsize, dict.fromkeys(givers), dict.fromkeys(takers))
            first.update({(number, rank): at for rank, at in give.items()})
            last.update({(number, rank): at for rank, at in take.items()})
        return Core(tasks, Ends(first), Ends(last))

    # -- weights ---------------------------------------------------------------------------------------------------

    def held(self, name: str, splits: Tuple[Split, ...]) -> Dict[int, Box]:
        """What each rank holds of a weight, of the splits of those who read it."""
        return self._once(('held', name, splits), self._held, name, splits)

    def _held(self, name: str, splits: Tuple[Split, ...]) -> Dict[int, Box]:
        shape = self.step_graph.parameters[name]
        weights = Weights({name: shape})
        for reader, split in zip(self.step_graph.readers[name], splits):
            for rank, (_, part) in self.parts(reader.number, split).items():
                box = part.inputs[reader.place]
                if box is not None:
                    weights.need(name, rank, full(shape) if reader.whole else box)
        return weights.boxes(name)

    def is_whole_everywhere(self, name: str, splits: Tuple[Split, ...]) -> bool:
        """Whether every rank holds all of it."""
        return self._once(('whole', name, splits), lambda: self.held(name, splits) == dict.fromkeys(
            self._everyone, full(self.step_graph.parameters[name])))

    def bundle(self, names: Tuple[str, ...]) -> Core:
        """Weights that every rank holds: gradients are summed over all, then each updates its own."""
        return self._once(('bundle', names), self._bundle, names)

    def _bundle(self, names: Tuple[str, ...]) -> Core:
        machine, costs, tasks = self.machine, self.machine.cluster.costs, Tasks(self.machine)
        size = sum(self.bytes_of[name] for name in names)
        update = costs['update'].seconds(len(names), size)
        if machine.ranks == 1:
            alone = {0: tasks.spend('update', 0, update)}
            return Core(tasks, _by_rank(alone), _by_rank(alone))
        own = costs['sum']
        half = own.seconds(machine.ranks, size) / 2
        give = {rank: tasks.spend('sum', rank, half, own.latency_s) for rank in self._everyone}
        before = self._summed(tasks, 'sum', list(give.values()), size)
        take = {rank: tasks.spend('sum', rank, half, after=before) for rank in self._everyone}
        last = {rank: tasks.spend('update', rank, update, after=[take[rank]]) for rank in self._everyone}
        return Core(tasks, _by_rank(give), _by_rank(last))

    def _summed(self, tasks: Tasks, kind: str, before: List[int], size: float) -> List[int]:
        """Gradients of all ranks are summed, what they have given: what comes behind it."""
        if self.machine.hosts > 1:
            return self._all_to_all(tasks, kind, before, size)
        return [tasks.add(kind, -1, -1, 0.0, after=before, latency=self.machine.cluster.memory_latency_s)]

    def _all_to_all(self, tasks: Tasks, kind: str, before: List[int], size: float) -> List[int]:
        """Hosts sum a range each, and tell each other: reduce-scatter and allgather."""
        machine = self.machine
        share = size * (machine.hosts - 1) / machine.hosts
        for _ in range(2):
            joined = tasks.add(kind, -1, -1, 0.0, after=before)
            before = [tasks.add(kind, -1, int(machine.up[host]), share, int(machine.down[host]),
                                machine.cluster.link_latency_s, after=[joined]) for host in range(machine.hosts)]
        return [tasks.add(kind, -1, -1, 0.0, after=before)]

    def part(self, name: str, splits: Tuple[Split, ...]) -> Core:
        """A weight that is split: gradients are summed over those who hold the same box."""
        return self._once(('part', name, splits), self._part, name, splits)

    def _part(self, name: str, splits: Tuple[Split, ...]) -> Core:
        costs, tasks = self.machine.cluster.costs, Tasks(self.machine)
        held, itemsize = self.held(name, splits), self._itemsizes[name]
        groups: Dict[Box, List[int]] = {}
        for rank, box in sorted(held.items()):
            groups.setdefault(box, []).append(rank)
        first: Dict[int, int] = {}
        last: Dict[int, int] = {}
        for box, ranks in groups.items():
            size = size_of(box) * itemsize
            before: Dict[int, List[int]] = {rank: [] for rank in ranks}
            if len(ranks) > 1:
                count = size_of(box) // len(ranks)
                pairs = [(one, other) for one in ranks for other in ranks if one != other]
                each = Moved(np.array([one for one, _ in pairs]), np.array([other for _, other in pairs]),
                             np.full(len(pairs), count))
                give, take = tasks.exchange(each, itemsize, dict.fromkeys(ranks), dict.fromkeys(ranks), 'group_sum',
                                            'sum', False)
                _, gathered = tasks.exchange(each, itemsize, dict(take), dict(take), 'group_sum', 'sum', False)
                first.update(give)
                before = {rank: [at] for rank, at in gathered.items()}
            for rank in ranks:
                last[rank] = tasks.spend('update', rank, costs['update'].seconds(1, size), after=before[rank])
                first.setdefault(rank, last[rank])
        return Core(tasks, _by_rank(first), _by_rank(last))

    def table_plan(self, name: str, tables: Mapping[str, TablePlan]) -> TablePlan:
        """How rows of a table travel: as is said, or as the store does it where nothing is, in a partition for each
        server.
        """
        found = tables.get(name, TablePlan('servers'))
        if found.route != 'servers':
            return found
        return found._replace(partitions=min(found.partitions or self.machine.hosts,
                                             self.step_graph.parameters[name][0]))

    def table(self, name: str, splits: Tuple[Split, ...], way: TablePlan) -> Core:
        """A weight with row_sparse gradients, of which every rank holds all: ranks push the rows of their ids to the
        servers, one on each host, and pull the rows that anyone has touched; or all rows are summed as a dense gradient
        is, with a mark for each.  Then all update those that were touched.
        """
        return self._once(('table', name, splits, way), self._table, name, splits, way)

    def _table(self, name: str, splits: Tuple[Split, ...], way: TablePlan) -> Core:
        machine, costs, tasks = self.machine, self.machine.cluster.costs, Tasks(self.machine)
        rows, *row = self.step_graph.parameters[name]
        size = int(np.prod(row)) * self._itemsizes[name]
        given = np.zeros(machine.ranks)
        for reader, split in zip(self.step_graph.readers[name], splits):
            for rank, (_, part) in self.parts(reader.number, split).items():
                ids = part.inputs[0]
                given[rank] += 0 if ids is None else size_of(ids)
        # Rows that several ids name count as often: which ids there will be is not known.
        touched = min(float(given.sum()), rows) * size
        given = np.minimum(given, rows) * float(size)
        if way.route == 'allreduce':
            moved = self._buffer_bytes(name)
            own = costs.get('row_sum', costs['sum'])
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
        return Core(tasks, _by_rank(first), _by_rank(last))

    def _server_shares(self, name: str, partitions: int) -> np.ndarray:
        """Share of a table's rows on each host: partitions are dealt out, those of another table from the next host on.
        """
        hosts = self.machine.hosts
        place = [one for one in self.step_graph.trained if one in self.step_graph.tables].index(name)
        return np.bincount((place + np.arange(partitions)) % hosts, None, hosts) / partitions

    def _buffer_bytes(self, name: str) -> int:
        """Of the rows of a table and their marks, as :mod:`mxhybrid.routes.row_sums` has them."""
        return self.bytes_of[name] + self.step_graph.parameters[name][0] * self._itemsizes[name]

    def table_bytes(self, name: str, way: TablePlan) -> np.ndarray:
        """Bytes that the way of its rows takes beside weight and gradient, by rank."""
        return np.full(self.machine.ranks, float(self._buffer_bytes(name) if way.route == 'allreduce' else 0))

    def _by_hosts(self, tasks: Tasks, kind: str, before: List[int], sent: np.ndarray, got: np.ndarray) -> List[int]:
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

    def script(self) -> Core:
        """What the training loop itself takes at the beginning of a step."""
        return self._once('script', self._script)

    def _script(self) -> Core:
        tasks = Tasks(self.machine)
        seconds = self.machine.cluster.costs['step'].seconds(len(self.step_graph.trained), 0)
        last = _by_rank({rank: tasks.spend('step', rank, seconds, self.machine.cluster.costs['step'].latency_s)
                         for rank in self._everyone})
        return Core(tasks, last, last)

    # -- memory ----------------------------------------------------------------------------------------------------

    def activations(self, number: int, split: Split) -> np.ndarray:
        """Bytes of an operator's outputs, which backward needs, by rank."""
        return self._once(('activations', number, split), self._activations, number, split)

    def _activations(self, number: int, split: Split) -> np.ndarray:
        one, found = self.graph.operators[number], np.zeros(self.machine.ranks)
        for rank, (_, part) in self.parts(number, split).items():
            found[rank] = sum(int(np.prod(shape_of(box))) * self.graph.dtypes[number, output].itemsize
                              for output, box in enumerate(part.outputs[:one.outputs]))
        return found

    def weight_bytes(self, name: str, splits: Tuple[Split, ...]) -> np.ndarray:
        """Bytes of a weight, its gradient and what an optimizer keeps beside it, by rank."""
        return self._once(('bytes', name, splits), self._weight_bytes, name, splits)

    def _weight_bytes(self, name: str, splits: Tuple[Split, ...]) -> np.ndarray:
        found = np.zeros(self.machine.ranks)
        for rank, box in self.held(name, splits).items():
            found[rank] = size_of(box) * self._itemsizes[name] * (2 + self.states)
        return found


def _by_rank(found: Dict[int, int]) -> Ends:
    return Ends({(0, rank): at for rank, at in found.items()})


def _is_there(have: Layout, wanted: Dict[int, Box], is_output: bool) -> bool:
    """Whether nothing has to be exchanged, as :class:`mxhybrid.parallel.program.Program` has it."""
    if have.gives(wanted):
        return not is_output or len(set(wanted.values())) == len(wanted)
    return not is_output and not have.partial and all(rank in have.boxes and all(
        low >= start and high <= end for (low, high), (start, end) in zip(box, have.boxes[rank]))
        for rank, box in wanted.items())
