"""The tasks of redistributions and of sums within groups of ranks, built by ``src/transfer_tasks.cc``."""
import array
import ctypes
from typing import Any, List, Sequence, Tuple

import numpy as np

from ..cluster.cluster_spec import TransferCost
from ..cluster.machine_model import Machine
from ..simulator.task_block import TASK, BlockContent, array_address
from .redistribution import RankBoxes, Redistribution, Transfers
from .task_builder import Endpoints, TaskSubgraph, kind_code

_POINTER, _I64, _DOUBLE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double

#: In place of the addresses of boxes and of transfers.
_NO_ARRAYS = (0,) * 4


class _PlannerMachine(ctypes.Structure):
    _fields_ = [(name, _POINTER) for name in ('core', 'host', 'up', 'down', 'shared')] + [
        ('ranks', _I64), ('hosts', _I64)] + [
        (name, _DOUBLE) for name in ('link_latency', 'memory_latency', 'memory_rate')]


class _PlannerCost(ctypes.Structure):
    _fields_ = [(name, _DOUBLE) for name in ('fixed', 'per_item', 'per_byte', 'latency')] + [('kind', _I64)]


class _PlannerRankBoxes(ctypes.Structure):
    _fields_ = [('ranks', _POINTER), ('boxes', _POINTER), ('count', _I64), ('dimensions', _I64)]


class _PlannerTransfers(ctypes.Structure):
    _fields_ = [('sources', _POINTER), ('targets', _POINTER), ('elements', _POINTER), ('count', _I64)]


class _PlannerSubgraph(ctypes.Structure):
    _fields_ = [('tasks', _POINTER), ('numbers', _POINTER)] + [
        (name, _I64) for name in ('successors', 'outputs', 'first', 'last', 'max_resource')]


class TransferTasks:
    """A builder of the tasks of transfers on a machine, by a library from :func:`.planner_library`."""

    def __init__(self, machine: Machine, library: Any):
        self._machine, self._library, costs = machine, library, machine.cluster.costs
        #: Kept, because compiled code has their addresses.
        self._arrays = [np.ascontiguousarray(numbers, np.int32)
                        for numbers in (machine.core, machine.host, machine.up, machine.down)]
        self._arrays.append(np.ascontiguousarray(machine.shared, np.float64))
        self._native = _PlannerMachine(*(numbers.ctypes.data for numbers in self._arrays), machine.ranks, machine.hosts,
                                       machine.cluster.link_latency_s, machine.cluster.memory_latency_s,
                                       machine.cluster.memory.rate)
        self._redistribution = _native_cost(costs['redistribution'], 'redistribution')
        self._sum = _native_cost(costs['group_sum'], 'sum')
        self._update = _native_cost(costs['update'], 'update')
        #: Buffers that compiled code fills; the results are copied from there.
        self._tasks, self._numbers = np.empty(0, TASK), np.empty(0, np.int32)
        self._subgraph = _PlannerSubgraph()

    def coverage(self, held: RankBoxes, needed: RankBoxes) -> int:
        """Return 2 if each rank holds exactly the box that it needs, 1 if each holds it or a larger one, else 0."""
        return self._library.planner_coverage(_native_boxes(held), _native_boxes(needed))

    def transfers(self, held: RankBoxes, partial: bool, needed: RankBoxes) -> Transfers:
        """Return the transfers that give each rank the box that it needs.

        Where ranks hold `partial` sums, a target gets one from each of them.  Where several ranks hold the same
        box, it comes from the rank that sends the fewest boxes.
        """
        capacity = len(held.ranks) * len(needed.ranks)
        arrays = np.empty(capacity, np.int32), np.empty(capacity, np.int32), np.empty(capacity, np.int64)
        native = _PlannerTransfers(*map(array_address, arrays), 0)
        count = _checked(self._library.planner_transfers(_native_boxes(held), partial, _native_boxes(needed),
                                                         ctypes.byref(native)))
        return Transfers(*(values[:count].copy() for values in arrays))

    def redistributions(self, units: Sequence[Tuple[int, Redistribution]], itemsize: int, back: bool) -> TaskSubgraph:
        """Return the tasks of redistributions that run side by side, or with `back` of their gradients.

        - `units`: the numbers ascend; they become the units of the endpoints.
        - `itemsize`: bytes of an element.
        """
        packed: List[int] = []
        endpoints, messages = 0, 0
        for number, unit in units:
            pieces = _NO_ARRAYS if unit.pieces is None else unit.pieces.addresses
            gathered = _NO_ARRAYS if unit.gathered is None else unit.gathered.addresses
            endpoints += 2 * max(len(unit.held.ranks), len(unit.needed.ranks)) * (1 + (unit.pieces is not None))
            for count in (len(unit.transfers), gathered[3]):
                messages += max(2 * count, 2 + 3 * self._machine.hosts)
            packed += (*unit.held.addresses, *unit.needed.addresses, *unit.transfers.addresses,
                       array_address(unit.gradient_ranks), len(unit.gradient_ranks), number, *pieces, *gathered)
            packed += (0, 0) if unit.conversions is None else map(array_address, unit.conversions)
        self._reserve(endpoints, messages, units[-1][0] + 1 if units else 0)
        numbers = array.array('q', packed)
        return self._copy_subgraph(self._library.planner_redistributions(
            ctypes.byref(self._native), ctypes.byref(self._redistribution), numbers.buffer_info()[0], len(units),
            itemsize, back, ctypes.byref(self._subgraph)))

    def collective_operator(self, kind: str, ranks: np.ndarray, before: np.ndarray, after: np.ndarray,
                            between: Transfers, itemsize: int) -> TaskSubgraph:
        """Return the tasks of an operator whose shards exchange data.

        Each shard, on one of the `ranks`, computes for `before` seconds, takes part in the transfers `between`, and
        computes for `after` seconds.
        """
        speed = self._machine.speed[ranks]
        seconds = [np.ascontiguousarray(values / speed) for values in (before, after)]
        self._reserve(4 * len(ranks), max(2 * len(between), 2 + 3 * self._machine.hosts), 1)
        return self._copy_subgraph(self._library.planner_collective_operator(
            ctypes.byref(self._native), ctypes.byref(self._redistribution),
            ctypes.byref(_PlannerTransfers(*between.addresses)), ranks.ctypes.data, len(ranks), itemsize,
            kind_code(kind), seconds[0].ctypes.data, seconds[1].ctypes.data, ctypes.byref(self._subgraph)))

    def group_sums(self, held: RankBoxes, itemsize: int) -> TaskSubgraph:
        """Return the tasks that sum gradients among ranks with the same box, in two halves, and update weights."""
        count = len(held.ranks)
        self._reserve(5 * count, 2 * count * max(2 * count, 2 + 3 * self._machine.hosts), 1)
        return self._copy_subgraph(self._library.planner_group_sums(
            ctypes.byref(self._native), ctypes.byref(self._sum), ctypes.byref(self._update), _native_boxes(held),
            itemsize, ctypes.byref(self._subgraph)))

    def load(self, contents: Sequence[BlockContent]) -> np.ndarray:
        """Return the work of each resource, in its units, without high-priority tasks, which delay no others."""
        load = np.zeros(len(self._machine.resources))
        packed = array.array('q', [number for content in contents
                                   for number in (content.addresses[0], content.size)])
        self._library.planner_add_load(packed.buffer_info()[0], len(contents), load.ctypes.data)
        return load

    def _reserve(self, endpoints: int, messages: int, units: int) -> None:
        """Make the buffers large enough for tasks of endpoints and of messages, and for outputs of units."""
        tasks = endpoints + messages
        numbers = 5 * endpoints + 2 * messages + units * self._machine.ranks + 1 + 6 * endpoints
        if tasks > len(self._tasks) or numbers > len(self._numbers):
            self._tasks, self._numbers = np.empty(2 * tasks, TASK), np.empty(2 * numbers, np.int32)
            self._subgraph.tasks, self._subgraph.numbers = self._tasks.ctypes.data, self._numbers.ctypes.data

    def _copy_subgraph(self, count: int) -> TaskSubgraph:
        native = self._subgraph
        tasks, start = self._tasks[:_checked(count)].copy(), 0
        sizes = [native.successors, native.outputs, *[native.first] * 3, *[native.last] * 3]
        numbers, arrays = self._numbers[:sum(sizes)].copy(), []
        for size in sizes:
            arrays.append(numbers[start:start + size])
            start += size
        successors, output_tasks, *endpoints = arrays
        return TaskSubgraph(BlockContent(tasks, successors, output_tasks, native.max_resource),
                            Endpoints(*endpoints[:3]), Endpoints(*endpoints[3:]))


def _checked(count: int) -> int:
    if count < 0:
        raise MemoryError('no memory for the tasks of transfers')
    return count


def _native_cost(cost: TransferCost, kind: str) -> _PlannerCost:
    return _PlannerCost(cost.fixed_s, cost.per_item_s, cost.per_byte_s, cost.latency_s, kind_code(kind))


def _native_boxes(boxes: RankBoxes) -> Any:
    return ctypes.byref(_PlannerRankBoxes(*boxes.addresses))
