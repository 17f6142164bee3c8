"""``src/transfers.cc`` as Python calls it: what :mod:`~.transfers` does, faster."""
import array
import ctypes
import functools
from typing import Any, Sequence, Tuple

import numpy as np

from .block import TASK, Content
from .cluster import TransferCost
from .flows import Moved, Placed
from .machine import Core, Ends, Machine, Records, about
from .planner_library import planner_library
from .transfers import Exchanged, Transfers

_POINTER, _I64, _DOUBLE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class _PlannerMachine(ctypes.Structure):
    _fields_ = [(name, _POINTER) for name in ('core', 'host', 'up', 'down')] + [
        ('ranks', _I64), ('hosts', _I64)] + [
        (name, _DOUBLE) for name in ('link_latency', 'memory_latency', 'memory_rate')]


class _PlannerCost(ctypes.Structure):
    _fields_ = [(name, _DOUBLE) for name in ('fixed', 'per_item', 'per_byte', 'latency')] + [('kind', _I64)]


class _PlannerBoxes(ctypes.Structure):
    _fields_ = [('ranks', _POINTER), ('boxes', _POINTER), ('count', _I64), ('dimensions', _I64)]


class _PlannerMoved(ctypes.Structure):
    _fields_ = [('sources', _POINTER), ('targets', _POINTER), ('elements', _POINTER), ('count', _I64)]


class _PlannerUnit(ctypes.Structure):
    _fields_ = [('moved', _PlannerMoved), ('givers', _POINTER), ('takers', _POINTER), ('giving', _I64),
                ('taking', _I64), ('itemsize', _I64)]


class _PlannerTasks(ctypes.Structure):
    _fields_ = [('tasks', _POINTER), ('targets', _POINTER)]


class CompiledTransfers(Transfers):
    """As :class:`~.transfers.Transfers`, by a library that was compiled."""

    def __init__(self, machine: Machine, library: Any):
        super().__init__(machine)
        self._library, costs = library, machine.cluster.costs
        #: They stay where they are for as long as this object.
        self._arrays = [np.ascontiguousarray(one, np.int32)
                        for one in (machine.core, machine.host, machine.up, machine.down)]
        self._native = _PlannerMachine(*(one.ctypes.data for one in self._arrays), machine.ranks, machine.hosts,
                                       machine.cluster.link_latency_s, machine.cluster.memory_latency_s,
                                       machine.cluster.memory.rate)
        self._exchange, self._sum = _cost(costs['exchange'], 'exchange'), _cost(costs['group_sum'], 'sum')
        self._update = _cost(costs['update'], 'update')
        self._edges = _I64()
        #: Tasks and successors are made here, and then copied.
        self._room = np.empty(0, TASK), np.empty(0, np.int32)

    def has(self, have: Placed, wanted: Placed) -> int:
        """See :func:`.flows.has`."""
        return self._library.planner_has(_boxes(have), _boxes(wanted))

    def moved(self, have: Placed, partial: bool, wanted: Placed) -> Moved:
        """See :func:`.flows.moved`."""
        room = len(have.ranks) * len(wanted.ranks)
        found = np.empty(room, np.int32), np.empty(room, np.int32), np.empty(room, np.int64)
        made = _PlannerMoved(*(one.ctypes.data for one in found), 0)
        count = _checked(self._library.planner_moved(_boxes(have), partial, _boxes(wanted), ctypes.byref(made)))
        return Moved(*(one[:count].copy() for one in found))

    def exchanges(self, units: Sequence[Exchanged], numbers: Sequence[int], itemsize: int) -> Core:
        """As :meth:`.Transfers.exchanges`."""
        native = (_PlannerUnit * len(units))(*(_unit(one, itemsize) for one in units))
        messages = [len(one.moved) for one in units]
        room = self._make_room(sum(len(one.givers) + len(one.takers) for one in units), messages)
        records = self._copied(room, self._library.planner_transfers(
            ctypes.byref(self._native), ctypes.byref(self._exchange), native, len(units), ctypes.byref(room),
            ctypes.byref(self._edges)))
        # Behind each other: who gives, who takes, messages.
        base, first, last = 0, [], []
        for unit, count in zip(units, messages):
            giving, taking = len(unit.givers), len(unit.takers)
            first.append(np.arange(base, base + giving, dtype=np.int32))
            last.append(np.arange(base + giving, base + giving + taking, dtype=np.int32))
            base += giving + taking + self._tasks_of(count, unit)
        return Core(records, _ends(numbers, [one.givers for one in units], first),
                    _ends(numbers, [one.takers for one in units], last))

    def _tasks_of(self, messages: int, unit: Exchanged) -> int:
        """Of what moves."""
        if messages <= 8 * self._machine.ranks:
            return messages
        here, there = self._machine.host[unit.moved.sources], self._machine.host[unit.moved.targets]
        remote = here != there
        return 1 + len(np.unique(here[remote])) + len(np.unique(there[remote])) + len(np.unique(here[~remote]))

    def composed(self, kind: str, ranks: np.ndarray, before: np.ndarray, after: np.ndarray, between: Moved,
                 itemsize: int) -> Core:
        """As :meth:`.Transfers.composed`."""
        speed = self._machine.speed[ranks]
        seconds = [np.ascontiguousarray(one / speed) for one in (before, after)]
        unit = _unit(Exchanged(between, ranks, ranks), itemsize)
        room = self._make_room(4 * len(ranks), [len(between)])
        records = self._copied(room, self._library.planner_composed(
            ctypes.byref(self._native), ctypes.byref(self._exchange), ctypes.byref(unit), about(kind),
            seconds[0].ctypes.data, seconds[1].ctypes.data, ctypes.byref(room), ctypes.byref(self._edges)))
        units, count, size = np.zeros(len(ranks), np.int32), len(ranks), len(records.work)
        return Core(records, Ends(units, ranks, np.arange(count, dtype=np.int32)),
                    Ends(units, ranks, np.arange(size - count, size, dtype=np.int32)))

    def group_sums(self, held: Placed, itemsize: int) -> Core:
        """As :meth:`.Transfers.group_sums`."""
        count = len(held.ranks)
        first, last = np.empty(count, np.int32), np.empty(count, np.int32)
        room = self._make_room(5 * count, [2 * count * count])
        records = self._copied(room, self._library.planner_group_sums(
            ctypes.byref(self._native), ctypes.byref(self._sum), ctypes.byref(self._update), _boxes(held), itemsize,
            ctypes.byref(room), first.ctypes.data, last.ctypes.data, ctypes.byref(self._edges)))
        units = np.zeros(count, np.int32)
        return Core(records, Ends(units, held.ranks, first), Ends(units, held.ranks, last))

    def work_of(self, contents: Sequence[Content]) -> np.ndarray:
        """As :meth:`.Transfers.work_of`."""
        found = np.zeros(len(self._machine.resources))
        given = array.array('q', [number for one in contents for number in (one.addresses[0], one.size)])
        self._library.planner_work_of(given.buffer_info()[0], len(contents), found.ctypes.data)
        return found

    def _make_room(self, ends: int, messages: Sequence[int]) -> _PlannerTasks:
        """For so many first and last tasks of ranks, and what moves between."""
        hosts = 1 + 3 * self._machine.hosts
        tasks = ends + sum(max(hosts, one) for one in messages)
        targets = 4 * ends + sum(max(hosts, 2 * one) for one in messages)
        if tasks > len(self._room[0]) or targets > len(self._room[1]):
            self._room = np.empty(2 * tasks, TASK), np.empty(2 * targets, np.int32)
        return _PlannerTasks(*(one.ctypes.data for one in self._room))

    def _copied(self, _room: _PlannerTasks, tasks: int) -> Records:
        return Records(self._machine, self._room[0][:_checked(tasks)].copy(),
                       self._room[1][:self._edges.value].copy())


def _ends(numbers: Sequence[int], ranks: Sequence[np.ndarray], tasks: Sequence[np.ndarray]) -> Ends:
    if len(ranks) == 1:
        return Ends(np.full(len(ranks[0]), numbers[0], np.int32), ranks[0], tasks[0])
    lengths = [len(one) for one in ranks]
    return Ends(np.array(numbers, np.int32).repeat(lengths), *(
        np.concatenate(one) if one else np.empty(0, np.int32) for one in (ranks, tasks)))


def _checked(count: int) -> int:
    if count < 0:
        raise MemoryError('no memory to make tasks')
    return count


def _cost(cost: TransferCost, kind: str) -> _PlannerCost:
    return _PlannerCost(cost.fixed_s, cost.per_item_s, cost.per_byte_s, cost.latency_s, about(kind))


def _boxes(placed: Placed) -> Any:
    if placed.native is None:
        placed.native = ctypes.byref(_PlannerBoxes(placed.ranks.ctypes.data, placed.boxes.ctypes.data,
                                                   len(placed.ranks), placed.boxes.shape[1]))
    return placed.native


def _unit(unit: Exchanged, itemsize: int) -> _PlannerUnit:
    moved = unit.moved
    return _PlannerUnit(_PlannerMoved(moved.sources.ctypes.data, moved.targets.ctypes.data, moved.elements.ctypes.data,
                                      len(moved)), unit.givers.ctypes.data, unit.takers.ctypes.data, len(unit.givers),
                        len(unit.takers), itemsize)


@functools.lru_cache(maxsize=None)
def load_transfers(path: str = '') -> Any:
    """The library, with what its functions take; OSError where there is none."""
    library = planner_library(path)
    takes: Tuple[Tuple[str, Sequence[Any]], ...] = (
        ('has', [_POINTER] * 2), ('moved', [_POINTER, _I64, _POINTER, _POINTER]),
        ('transfers', [_POINTER, _POINTER, _POINTER, _I64, _POINTER, _POINTER]),
        ('composed', [_POINTER, _POINTER, _POINTER, _I64, _POINTER, _POINTER, _POINTER, _POINTER]),
        ('work_of', [_POINTER, _I64, _POINTER]),
        ('group_sums', [_POINTER, _POINTER, _POINTER, _POINTER, _I64, _POINTER, _POINTER, _POINTER, _POINTER]))
    for name, arguments in takes:
        function = getattr(library, 'planner_' + name)
        function.restype, function.argtypes = _I64, arguments
    return library


def fastest_transfers(machine: Machine) -> Transfers:
    """By the library, or by Python; :func:`.engine.fastest_engine` says so."""
    try:
        return CompiledTransfers(machine, load_transfers())
    except OSError:
        return Transfers(machine)
