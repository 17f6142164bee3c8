"""The tasks of weights: sums of their gradients, transfers of rows of tables, and updates."""
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from ...base.settings import TablePlan
from ...parallel.ops.fixed_shards import structure_of, weight_boxes
from ...parallel.ops.graph import Entry
from ...parallel.sharding.box import Box, bounding_box
from ...parallel.sharding.split import Split
from ...parallel.sharding.weight_layout import WeightLayouts
from ..cluster.machine_model import Machine
from .dataflow import Dataflow, WeightReader
from .memo import Memo
from .operator_shards import ShardedOperator, SplitOperator, whole_boxes
from .redistribution import RankBoxes, boxes_by_rank
from .task_builder import Endpoints, TaskBuilder, TaskSubgraph
from .transfer_tasks import TransferTasks


class WeightShards(NamedTuple):
    """The shards of a weight on ranks; weights of the same size share them."""

    #: The box that each rank holds.
    boxes: RankBoxes
    #: By rank: the bytes of the shard, and where it is trained of its gradient and the states of the optimizer.
    bytes: np.ndarray
    #: Whether every rank holds the whole weight.
    is_replicated: bool


class WeightArrays(NamedTuple):
    """The arrays of each trained weight in addition to its gradient, and whether ranks divide its updates."""

    #: The number of arrays that the optimizer keeps.
    states: int = 0
    #: The number of arrays that every rank holds.
    others: int = 0
    #: Whether each rank updates a part of the weights that all ranks hold, and keeps the states of this part alone, as
    #: the setting ``shard_updates`` makes the lane do.
    shards_updates: bool = False


class WeightTasks:
    """The tasks of the weights of a network on a machine.

    - `memo`: the cache of tasks that were made.
    - `sharded`: returns the :class:`ShardedOperator` of an operator's number and a split.
    """

    def __init__(self, dataflow: Dataflow, machine: Machine, transfer_tasks: TransferTasks, memo: Memo,
                 sharded: Callable[[int, Split], ShardedOperator], arrays: WeightArrays):
        self._dataflow, self._machine, self._transfer_tasks, self._memo = dataflow, machine, transfer_tasks, memo
        self._sharded, self._arrays = sharded, arrays
        graph = dataflow.graph
        #: The bytes of an element of each weight.
        self.itemsizes = {operator.name: graph.dtypes[operator.number, 0].itemsize for operator in graph.operators
                          if operator.op == 'null'}
        #: The bytes of each whole weight.
        self.bytes_of = {name: int(np.prod(shape)) * self.itemsizes[name]
                         for name, shape in dataflow.parameters.items()}
        self._trained = set(dataflow.trained)
        self._all_ranks = range(machine.ranks)
        #: By output of an operator on weights alone, see :func:`structure_of`.
        self._structures: Dict[Entry, Tuple[Any, List[str]]] = {}

    # -- shards ----------------------------------------------------------------------------------------------------

    def shards(self, name: str, readers: Sequence[SplitOperator]) -> WeightShards:
        """Return the shards of a weight, given the operators that read it."""
        key = ('weight shards', name, *[reader.id for reader in readers])
        return self._memo.once(key, self._make_shards, name, [reader.split for reader in readers])

    def _make_shards(self, name: str, splits: Sequence[Split]) -> WeightShards:
        shape = self._dataflow.parameters[name]
        needed = [self._boxes_read(name, reader, self._sharded(reader.number, split).input_boxes(reader.input_index))
                  for reader, split in zip(self._dataflow.readers[name], splits)]
        boxes = self._memo.once(('weight boxes', shape) + tuple(boxes.id for boxes in needed),
                                self._weight_boxes, shape, needed)
        is_trained, itemsize = name in self._trained, self.itemsizes[name]
        # Updates of tables are not divided.
        is_divided = self._arrays.shards_updates and is_trained and name not in self._dataflow.tables
        return self._memo.once(('weight', boxes.id, shape, itemsize, is_trained, is_divided), self._sized_shards, boxes,
                               shape, itemsize, is_trained, is_divided)

    def _sized_shards(self, boxes: RankBoxes, shape: Tuple[int, ...], itemsize: int, is_trained: bool, is_divided: bool
                      ) -> WeightShards:
        size_bytes = np.zeros(self._machine.ranks)
        is_replicated = len(boxes.ranks) == self._machine.ranks and bool(
            (boxes.boxes == whole_boxes(shape, boxes).boxes).all())
        states = self._arrays.states / (self._machine.ranks if is_divided and is_replicated else 1)
        arrays = 2 + states + self._arrays.others if is_trained else 1
        size_bytes[boxes.ranks] = boxes.sizes() * itemsize * arrays
        return WeightShards(boxes, size_bytes, is_replicated)

    def _boxes_read(self, name: str, reader: WeightReader, boxes: RankBoxes) -> RankBoxes:
        """Return the boxes of a weight that ranks read, given those of the reader's input."""
        if reader.is_direct:
            return boxes
        entry = self._dataflow.graph.operators[reader.number].inputs[reader.input_index]
        if entry not in self._structures:
            self._structures[entry] = structure_of(self._dataflow.graph, entry)
        key, names = self._structures[entry]
        return self._memo.once(('boxes below', key, boxes.id), self._boxes_below, entry, names, boxes
                               )[names.index(name)]

    def _boxes_below(self, entry: Entry, names: Sequence[str], boxes: RankBoxes) -> List[RankBoxes]:
        """Return the boxes of each parameter that ranks read for boxes of an operator on weights alone."""
        # Few boxes are different.
        read_for: Dict[Box, Dict[str, Box]] = {}
        for box in set(boxes.by_rank.values()):
            read: Dict[str, List[Box]] = {}
            for name, parameter_box in weight_boxes(self._dataflow.graph, entry, box):
                read.setdefault(name, []).append(parameter_box)
            read_for[box] = {name: bounding_box(of_name) for name, of_name in read.items()}
        return [boxes_by_rank(self._memo, {rank: read_for[box][name] for rank, box in boxes.by_rank.items()
                                           if name in read_for[box]}) for name in names]

    def _weight_boxes(self, shape: Tuple[int, ...], needed: List[RankBoxes]) -> RankBoxes:
        """Return the boxes that ranks hold, given the boxes that readers need."""
        if len(needed) == 1 and (needed[0].boxes == whole_boxes(shape, needed[0]).boxes).all():
            return needed[0]
        weights = WeightLayouts({'': shape})
        for boxes in needed:
            for rank, box in boxes.by_rank.items():
                weights.require('', rank, box)
        return boxes_by_rank(self._memo, weights.boxes(''))

    # -- dense gradients -------------------------------------------------------------------------------------------

    def gradient_bucket(self, names: Tuple[str, ...]) -> TaskSubgraph:
        """Return the tasks of weights that every rank holds: one sum of their gradients over all ranks, and updates."""
        size_bytes = sum(self.bytes_of[name] for name in names)
        return self._memo.once(('bucket', len(names), size_bytes), self._bucket, len(names), size_bytes)

    def _bucket(self, count: int, size_bytes: int) -> TaskSubgraph:
        ranks, costs, tasks = self._machine.ranks, self._machine.cluster.costs, TaskBuilder(self._machine)
        update_s = costs['update'].seconds(count, size_bytes)
        if ranks == 1:
            update = Endpoints.by_rank({0: tasks.spend('update', 0, update_s)})
            return tasks.subgraph(update, update)
        if not self._arrays.shards_updates:
            return self._with_updates(tasks, *self._sum(tasks, 'sum', size_bytes), update_s)
        # A reduce-scatter of gradients, an update of a part of the weights on each rank, and an allgather of weights.
        half_s = costs['sum'].seconds(ranks, size_bytes) / 2
        update_s = costs['update'].seconds(count, size_bytes / ranks)
        send = {rank: tasks.spend('sum', rank, half_s, costs['sum'].latency_s) for rank in self._all_ranks}
        scattered = self._allreduce(tasks, 'sum', list(send.values()), size_bytes, 1)
        updates = [tasks.spend('update', rank, update_s, after=scattered) for rank in self._all_ranks]
        gathered = self._allreduce(tasks, 'gather', updates, size_bytes, 1)
        receive = {rank: tasks.spend('gather', rank, half_s, after=gathered) for rank in self._all_ranks}
        return tasks.subgraph(Endpoints.by_rank(send), Endpoints.by_rank(receive))

    def _sum(self, tasks: TaskBuilder, kind: str, size_bytes: float) -> Tuple[Dict[int, int], Dict[int, int]]:
        """Add a sum over all ranks; return the first and the last task of each rank."""
        cost = self._machine.cluster.costs[kind]
        half_s = cost.seconds(self._machine.ranks, size_bytes) / 2
        send = {rank: tasks.spend(kind, rank, half_s, cost.latency_s) for rank in self._all_ranks}
        summed = self._allreduce(tasks, kind, list(send.values()), size_bytes)
        return send, {rank: tasks.spend(kind, rank, half_s, after=summed) for rank in self._all_ranks}

    def _with_updates(self, tasks: TaskBuilder, first: Dict[int, int], last: Dict[int, int], update_s: float
                      ) -> TaskSubgraph:
        """Return the tasks, with an update on each rank after its last one."""
        updates = {rank: tasks.spend('update', rank, update_s, after=[last[rank]]) for rank in self._all_ranks}
        return tasks.subgraph(Endpoints.by_rank(first), Endpoints.by_rank(updates))

    def _allreduce(self, tasks: TaskBuilder, kind: str, before: List[int], size_bytes: float, rounds: int = 2
                   ) -> List[int]:
        """Add the transfers of a sum over all hosts, after some tasks; return the tasks that end it.

        They are a reduce-scatter and an allgather, each an all-to-all of the hosts; with one round, one of the two.
        """
        machine = self._machine
        if machine.hosts == 1:
            return [tasks.add(kind, -1, -1, 0.0, after=before, latency=machine.cluster.memory_latency_s)]
        link_bytes = size_bytes * (machine.hosts - 1) / machine.hosts
        for _ in range(rounds):
            joined = tasks.add(kind, -1, -1, 0.0, after=before)
            before = [tasks.add(kind, -1, int(machine.up[host]), link_bytes, int(machine.down[host]),
                                machine.cluster.link_latency_s, after=[joined]) for host in range(machine.hosts)]
        return [tasks.add(kind, -1, -1, 0.0, after=before)]

    def sharded_weight(self, name: str, shards: WeightShards) -> TaskSubgraph:
        """Return the tasks of a weight that is split: sums of gradients among ranks with the same box, and updates."""
        boxes, itemsize = shards.boxes, self.itemsizes[name]
        return self._memo.once(('sharded weight', boxes.id, itemsize), self._transfer_tasks.group_sums, boxes, itemsize)

    # -- tables ----------------------------------------------------------------------------------------------------

    def table_plan(self, name: str, tables: Mapping[str, TablePlan]) -> TablePlan:
        """Return the route of a table's rows: as planned, or else as the store chooses: a partition for each server."""
        plan = tables.get(name, TablePlan('servers'))
        if plan.route != 'servers':
            return plan
        return plan._replace(partitions=min(plan.partitions or self._machine.hosts, self._dataflow.parameters[name][0]))

    def table(self, name: str, readers: Sequence[SplitOperator], plan: TablePlan) -> TaskSubgraph:
        """Return the tasks of a table: a weight with row_sparse gradients, which every rank holds.

        By servers, one on each host, ranks push the rows of their ids, and pull all rows that any rank has touched.  By
        allreduce, all rows are summed as a dense gradient, together with a mark for each.  Then each rank updates the
        touched rows.
        """
        splits = tuple(reader.split for reader in readers)
        return self._memo.once(('table', name, splits, plan), self._table, name, splits, plan)

    def _table(self, name: str, splits: Sequence[Split], plan: TablePlan) -> TaskSubgraph:
        machine, costs, tasks = self._machine, self._machine.cluster.costs, TaskBuilder(self._machine)
        rows, *row_shape = self._dataflow.parameters[name]
        row_bytes = int(np.prod(row_shape)) * self.itemsizes[name]
        id_counts = np.zeros(machine.ranks)
        for reader, split in zip(self._dataflow.readers[name], splits):
            ids = self._sharded(reader.number, split).input_boxes(0)
            id_counts[ids.ranks] += ids.sizes()
        # A row counts as often as ids name it: which ids there will be is not known.
        touched_bytes = min(float(id_counts.sum()), rows) * row_bytes
        pushed_bytes = np.minimum(id_counts, rows) * float(row_bytes)
        if plan.route == 'allreduce':
            send, receive = self._sum(tasks, 'row_sum', self._buffer_bytes(name))
        else:
            partitions = plan.partitions or 1
            number = [table for table in self._dataflow.trained if table in self._dataflow.tables].index(name)
            shares = server_shares(machine.hosts, number, partitions)
            push, pull = costs['push'], costs['pull']
            send = {rank: tasks.spend('push', rank, push.seconds(partitions, float(pushed_bytes[rank])), push.latency_s)
                    for rank in self._all_ranks}
            host_bytes = np.bincount(machine.host, pushed_bytes, machine.hosts)
            pushed = between_hosts(machine, tasks, 'push', list(send.values()), host_bytes * (1 - shares),
                                   (host_bytes.sum() - host_bytes) * shares)
            # Each server sends its share of the rows once to each other host.
            pulled = between_hosts(machine, tasks, 'pull', pushed, touched_bytes * shares * (machine.hosts - 1),
                                   touched_bytes * (1 - shares))
            receive = {rank: tasks.spend('pull', rank, pull.seconds(partitions, touched_bytes), pull.latency_s, pulled)
                       for rank in self._all_ranks}
        return self._with_updates(tasks, send, receive, costs['update'].seconds(1, touched_bytes))

    def _buffer_bytes(self, name: str) -> int:
        """Return the bytes of a table's rows and their marks, as :mod:`mxhybrid.routes.row_sums` sums them."""
        return self.bytes_of[name] + self._dataflow.parameters[name][0] * self.itemsizes[name]

    def table_bytes(self, name: str, plan: TablePlan) -> np.ndarray:
        """Return the bytes by rank that the route of a table's rows needs in addition to weight and gradient."""
        return np.full(self._machine.ranks, float(self._buffer_bytes(name) if plan.route == 'allreduce' else 0))


def server_shares(hosts: int, first: int, partitions: int) -> np.ndarray:
    """Return the share of a table's rows on each host: partitions go to hosts in turn, from the host `first` on."""
    return np.bincount((first + np.arange(partitions)) % hosts, None, hosts) / partitions


def between_hosts(machine: Machine, tasks: TaskBuilder, kind: str, before: List[int], sent_bytes: np.ndarray,
                  received_bytes: np.ndarray) -> List[int]:
    """Add transfers on the links of all hosts, after some tasks; return the tasks that end them."""
    if machine.hosts > 1:
        joined = tasks.add(kind, -1, -1, 0.0, after=before)
        before = [joined] + [
            tasks.add(kind, -1, int(link[host]), float(link_bytes[host]), -1, machine.cluster.link_latency_s,
                      after=[joined])
            for link, link_bytes in ((machine.up, sent_bytes), (machine.down, received_bytes))
            for host in range(machine.hosts) if link_bytes[host]]
    return [tasks.add(kind, -1, -1, 0.0, after=before)]
