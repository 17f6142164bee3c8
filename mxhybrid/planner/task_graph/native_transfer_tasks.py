"""``src/transfer_tasks.cc`` as Python calls it: what :mod:`~.transfer_tasks` does, faster."""
import array
import ctypes
import functools
from typing import Any, List, Sequence, Tuple

import numpy as np

from ..cluster.cluster_spec import TransferCost
from ..simulator.native_library import planner_library
from ..simulator.task_block import TASK, BlockContent, array_address
from .redistribution import Transfers, RankBoxes, Redistribution
from .task_builder import TaskSubgraph, Endpoints, Machine, TaskView, kind_code
from .transfer_tasks import TransferTasks

_POINTER, _I64, _DOUBLE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class _PlannerMachine(ctypes.Structure):
    _fields_ = [(name, _POINTER) for name in ('core', 'host', 'up', 'down', 'shared')] + [
        ('ranks', _I64), ('hosts', _I64)] + [
        (name, _DOUBLE) for name in ('link_latency', 'memory_latency', 'memory_rate')]


class _PlannerCost(ctypes.Structure):
    _fields_ = [(name, _DOUBLE) for name in ('fixed', 'per_item', 'per_byte', 'latency')] + [('kind', _I64)]


class _PlannerBoxes(ctypes.Structure):
    _fields_ = [('ranks', _POINTER), ('boxes', _POINTER), ('count', _I64), ('dimensions', _I64)]


class _PlannerTransfers(ctypes.Structure):
    _fields_ = [('sources', _POINTER), ('targets', _POINTER), ('elements', _POINTER), ('count', _I64)]


class _PlannerSubgraph(ctypes.Structure):
    _fields_ = [('tasks', _POINTER), ('numbers', _POINTER)] + [
        (name, _I64) for name in ('targets', 'ports', 'first', 'last', 'top')]


class NativeTransferTasks(TransferTasks):
    """As :class:`~.transfer_tasks.TransferTasks`, by a library that was compiled."""

    def __init__(self, machine: Machine, library: Any):
        super().__init__(machine)
        self._library, costs = library, machine.cluster.costs
        #: They stay where they are for as long as this object.
        self._arrays = [np.ascontiguousarray(one, np.int32)
                        for one in (machine.core, machine.host, machine.up, machine.down)]
        self._arrays.append(np.ascontiguousarray(machine.shared, np.float64))
        self._native = _PlannerMachine(*(one.ctypes.data for one in self._arrays), machine.ranks, machine.hosts,
                                       machine.cluster.link_latency_s, machine.cluster.memory_latency_s,
                                       machine.cluster.memory.rate)
        self._exchange, self._sum = _cost(costs['exchange'], 'exchange'), _cost(costs['group_sum'], 'sum')
        self._update = _cost(costs['update'], 'update')
        #: TaskBuilder and numbers are made here, and then copied.
        self._tasks, self._numbers = np.empty(0, TASK), np.empty(0, np.int32)
        self._made = _PlannerSubgraph()

    def has(self, have: RankBoxes, wanted: RankBoxes) -> int:
        """See :func:`.redistribution.has`."""
        return self._library.planner_has(_boxes(have), _boxes(wanted))

    def moved(self, have: RankBoxes, partial: bool, wanted: RankBoxes) -> Transfers:
        """See :func:`.redistribution.moved`."""
        room = len(have.ranks) * len(wanted.ranks)
        found = np.empty(room, np.int32), np.empty(room, np.int32), np.empty(room, np.int64)
        made = _PlannerTransfers(*map(array_address, found), 0)
        count = _checked(self._library.planner_moved(_boxes(have), partial, _boxes(wanted), ctypes.byref(made)))
        return Transfers(*(one[:count].copy() for one in found))

    def exchanges(self, units: Sequence[Tuple[int, Redistribution]], itemsize: int, back: bool) -> TaskSubgraph:
        """As :meth:`.TransferTasks.exchanges`."""
        given: List[int] = []
        ends, messages = 0, 0
        for number, unit in units:
            moved, answers = unit.moved.addresses, unit.answers
            ends += 2 * max(len(unit.have.ranks), len(unit.wanted.ranks))
            messages += max(2 * moved[3], 2 + 3 * self._machine.hosts)
            given += moved
            given += (unit.have.address, len(unit.have.ranks), unit.wanted.address, len(unit.wanted.ranks),
                      array_address(answers), len(answers), number)
        self._make_room(ends, messages, units[-1][0] + 1 if units else 0)
        numbers = array.array('q', given)
        return self._core(self._library.planner_exchanges(
            ctypes.byref(self._native), ctypes.byref(self._exchange), numbers.buffer_info()[0], len(units), itemsize,
            back, ctypes.byref(self._made)))

    def composed(self, kind: str, ranks: np.ndarray, before: np.ndarray, after: np.ndarray, between: Transfers,
                 itemsize: int) -> TaskSubgraph:
        """As :meth:`.TransferTasks.composed`."""
        speed = self._machine.speed[ranks]
        seconds = [np.ascontiguousarray(one / speed) for one in (before, after)]
        self._make_room(4 * len(ranks), max(2 * len(between), 2 + 3 * self._machine.hosts), 1)
        return self._core(self._library.planner_composed(
            ctypes.byref(self._native), ctypes.byref(self._exchange), ctypes.byref(_PlannerTransfers(*between.addresses)),
            ranks.ctypes.data, len(ranks), itemsize, kind_code(kind), seconds[0].ctypes.data, seconds[1].ctypes.data,
            ctypes.byref(self._made)))

    def group_sums(self, held: RankBoxes, itemsize: int) -> TaskSubgraph:
        """As :meth:`.TransferTasks.group_sums`."""
        count = len(held.ranks)
        self._make_room(5 * count, 2 * count * max(2 * count, 2 + 3 * self._machine.hosts), 1)
        return self._core(self._library.planner_group_sums(
            ctypes.byref(self._native), ctypes.byref(self._sum), ctypes.byref(self._update), _boxes(held), itemsize,
            ctypes.byref(self._made)))

    def work_of(self, contents: Sequence[BlockContent]) -> np.ndarray:
        """As :meth:`.TransferTasks.work_of`."""
        found = np.zeros(len(self._machine.resources))
        given = array.array('q', [number for one in contents for number in (one.addresses[0], one.size)])
        self._library.planner_work_of(given.buffer_info()[0], len(contents), found.ctypes.data)
        return found

    def _make_room(self, ends: int, messages: int, units: int) -> None:
        """For so many first and last tasks of ranks, what moves between, and units."""
        tasks = ends + messages
        numbers = 5 * ends + 2 * messages + units * self._machine.ranks + 1 + 6 * ends
        if tasks > len(self._tasks) or numbers > len(self._numbers):
            self._tasks, self._numbers = np.empty(2 * tasks, TASK), np.empty(2 * numbers, np.int32)
            self._made.tasks, self._made.numbers = self._tasks.ctypes.data, self._numbers.ctypes.data

    def _core(self, count: int) -> TaskSubgraph:
        made = self._made
        tasks, at = self._tasks[:_checked(count)].copy(), 0
        sizes = [made.targets, made.ports, *[made.first] * 3, *[made.last] * 3]
        numbers, parts = self._numbers[:sum(sizes)].copy(), []
        for size in sizes:
            parts.append(numbers[at:at + size])
            at += size
        targets, table, *ends = parts
        return TaskSubgraph.of(TaskView(self._machine, tasks, targets), BlockContent.of(tasks, targets, table, made.top),
                       Endpoints(*ends[:3]), Endpoints(*ends[3:]))


def _checked(count: int) -> int:
    if count < 0:
        raise MemoryError('no memory to make tasks')
    return count


def _cost(cost: TransferCost, kind: str) -> _PlannerCost:
    return _PlannerCost(cost.fixed_s, cost.per_item_s, cost.per_byte_s, cost.latency_s, kind_code(kind))


def _boxes(placed: RankBoxes) -> Any:
    if placed.native is None:
        placed.native = ctypes.byref(_PlannerBoxes(placed.address, array_address(placed.boxes),
                                                   len(placed.ranks), placed.boxes.shape[1]))
    return placed.native


@functools.lru_cache(maxsize=None)
def load_transfer_tasks(path: str = '') -> Any:
    """The library, with what its functions take; OSError where there is none."""
    library = planner_library(path)
    takes: Tuple[Tuple[str, Sequence[Any]], ...] = (
        ('has', [_POINTER] * 2), ('moved', [_POINTER, _I64, _POINTER, _POINTER]),
        ('exchanges', [_POINTER, _POINTER, _POINTER, _I64, _I64, _I64, _POINTER]),
        ('composed', [_POINTER, _POINTER, _POINTER, _POINTER, _I64, _I64, _I64, _POINTER, _POINTER, _POINTER]),
        ('group_sums', [_POINTER, _POINTER, _POINTER, _POINTER, _I64, _POINTER]),
        ('work_of', [_POINTER, _I64, _POINTER]))
    for name, arguments in takes:
        function = getattr(library, 'planner_' + name)
        function.restype, function.argtypes = _I64, arguments
    return library


def fastest_transfers(machine: Machine) -> TransferTasks:
    """By the library, or by Python; :func:`.backend.fastest_engine` says so."""
    try:
        return NativeTransferTasks(machine, load_transfer_tasks())
    except OSError:
        return TransferTasks(machine)
