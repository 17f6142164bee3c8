"""Where the tasks of all blocks lie: arrays, to which changes only append.

A rejected change is taken back by forgetting what was appended.  What accepted ones leave behind is dropped when there
is no more room, by laying all blocks out anew.
"""
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from .task_block import TASK, TaskBlock, BlockInput, joined_tasks, order_of

#: How much is set aside for what the first blocks need, and beside that; memory that is not touched costs nothing.
_SPARE, _LEAST = 3, 1024


class Replaced(NamedTuple):
    """What a change of blocks has changed, as numbers of tasks.

    Attributes
    ----------
    first : int
        From here on tasks are new.
    changed : numpy.ndarray of int64
        Those that are new, or wait for others than before.
    gone : numpy.ndarray of int64
        Those that are no more.
    """

    first: int
    changed: np.ndarray
    gone: np.ndarray


class TaskTable:
    """Tasks, their successors, and which of them live: what :class:`PythonTaskTable` and
    :class:`~.native_task_table.NativeTaskTable` have in common.

    Attributes
    ----------
    tasks : numpy.ndarray of TASK
    targets : numpy.ndarray of int32
        Successors in the same block, of all tasks.
    outer_targets : numpy.ndarray of int32
        Successors in other blocks.
    bases, sizes : numpy.ndarray of int32
        Of slots: the first task, and how many there are.
    keys : numpy.ndarray of int64
        Of slots: the block's key.
    alive : numpy.ndarray of uint8
        Of slots: whether its block is part of the step.
    counts : numpy.ndarray of int64
        How many tasks, successors in the same block and in others, and slots are used; and how many tasks live.
    blocks : dict of int to TaskBlock
        Those that are part of the step, by key.
    """

    def __init__(self, blocks: Sequence[TaskBlock], more: Sequence[TaskBlock] = ()):
        """These blocks, with room for more, and for as many others as come with changes of them."""
        every = [*blocks, *more]
        self.tasks = np.empty(_room(block.size for block in every), TASK)
        self.targets = np.empty(_room(len(block.content.targets) for block in every), np.int32)
        self.outer_targets = np.empty(_room(len(read.waits) for block in every for read in block.reads), np.int32)
        slots = _room(1 for _ in every)
        self.bases, self.sizes = np.empty(slots, np.int32), np.empty(slots, np.int32)
        self.keys, self.alive = np.empty(slots, np.int64), np.zeros(slots, np.uint8)
        self.counts = np.zeros(5, np.int64)
        self.blocks: Dict[int, TaskBlock] = {}
        self._before: Dict[int, Optional[TaskBlock]] = {}

    @property
    def used(self) -> int:
        """How many tasks there are, with those that do not live."""
        return int(self.counts[0])

    @property
    def live_tasks(self) -> int:
        """How many live."""
        return int(self.counts[4])

    def replace(self, blocks: Mapping[int, Optional[TaskBlock]]) -> Optional[Replaced]:
        """Put blocks in the place of those of the same keys, None to have none; nothing is done, and None returned,
        where there is no room.
        """
        found = self._replace(blocks)
        if found is not None:
            self._before = {key: self.blocks.get(key) for key in blocks}
            self._set(blocks)
        return found

    def undo(self) -> None:
        """Back to before the last :meth:`replace`; once for each."""
        self._undo()
        self._set(self._before)

    def _set(self, blocks: Mapping[int, Optional[TaskBlock]]) -> None:
        for key, block in blocks.items():
            if block is None:
                self.blocks.pop(key, None)
            else:
                self.blocks[key] = block

    def _replace(self, blocks: Mapping[int, Optional[TaskBlock]]) -> Optional[Replaced]:
        raise NotImplementedError

    def _undo(self) -> None:
        raise NotImplementedError

    def spans(self) -> Dict[int, slice]:
        """Where the tasks of each block are, by key, in the order of their slots."""
        slots = self._live_slots()
        return {key: slice(base, base + size) for key, base, size in zip(
            *(of[slots].tolist() for of in (self.keys, self.bases, self.sizes)))}

    def live(self) -> np.ndarray:
        """Numbers of all tasks that live, block by block."""
        slots = self._live_slots()
        return ranges(self.bases[slots], self.sizes[slots])

    def _live_slots(self) -> np.ndarray:
        return np.flatnonzero(self.alive[:self.counts[3]])

    def edges(self, tasks: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """All pairs of a task, one of these, and another that comes after it."""
        befores, afters = [], []
        for name, targets in (('inner', self.targets), ('outer', self.outer_targets)):
            start = self.tasks[name][tasks]
            count = self.tasks[name + '_end'][tasks] - start
            befores.append(tasks.repeat(count))
            afters.append(targets[ranges(start, count)])
        return np.concatenate(befores), np.concatenate(afters)


class _Slot(NamedTuple):
    """A block, and the tasks that are its own: `base` up to `base` + its size."""

    block: TaskBlock
    slot: int
    base: int

    @property
    def span(self) -> slice:
        return slice(self.base, self.base + self.block.size)


class _Undo(NamedTuple):
    """How it was before a change."""

    counts: np.ndarray
    #: By key, the block that was there, or None.
    places: Dict[int, Optional[_Slot]]
    #: Blocks that stayed, and where their successors in other blocks were.
    outers: List[Tuple[_Slot, np.ndarray]]


class PythonTaskTable(TaskTable):
    """What ``src/task_table.cc`` does, slower: the reference, and what runs where that could not be compiled."""

    def __init__(self, blocks: Sequence[TaskBlock], more: Sequence[TaskBlock] = ()):
        super().__init__(blocks, more)
        self._places: Dict[int, _Slot] = {}
        #: Who waits for a block, if it is there: keys, of which the values say nothing.
        self._readers: Dict[int, Dict[int, None]] = {}
        self._last: _Undo
        self.replace({block.key: block for block in blocks})

    def _replace(self, blocks: Mapping[int, Optional[TaskBlock]]) -> Optional[Replaced]:
        new = [block for block in blocks.values() if block is not None]
        old = [self._places[key] for key in blocks if key in self._places]
        # Those whose successors in other blocks are written anew.
        touched = dict.fromkeys(blocks)
        for block in [place.block for place in old] + new:
            touched.update(dict.fromkeys(read.key for read in block.reads))
        if not self._has_room(new, touched):
            return None
        self._last = self._mark(blocks, touched)
        changed = [self._outer_of(place) for place in old]
        first = self.used
        for place in old:
            self._take_out(place.block.key)
        self._put(new)
        self._connect(touched)
        changed += [self._outer_of(self._places[block.key]) for block in new]
        gone = ranges(np.array([place.base for place in old], int), np.array([place.block.size for place in old], int))
        return Replaced(first, self._living(np.concatenate([np.arange(first, self.used)] + changed)), gone)

    def _has_room(self, blocks: Sequence[TaskBlock], touched: Iterable[int]) -> bool:
        tasks = sum(block.size for block in blocks)
        inner = sum(len(block.content.targets) for block in blocks)
        outer = sum(len(read.waits) for block in blocks for read in block.reads)
        for key in touched:
            for reader in self._readers.get(key, ()):
                outer += sum(len(read.waits) for read in self._reads(reader, key))
        used, used_inner, used_outer, used_slots = self.counts[:4].tolist()
        return (used + tasks <= len(self.tasks) and used_inner + inner <= len(self.targets)
                and used_outer + outer <= len(self.outer_targets) and used_slots + len(blocks) <= len(self.bases))

    def _reads(self, reader: int, key: int) -> List[BlockInput]:
        return [read for read in self._places[reader].block.reads if read.key == key]

    def _mark(self, keys: Iterable[int], touched: Iterable[int]) -> _Undo:
        places = {key: self._places.get(key) for key in keys}
        stay = [self._places[key] for key in touched if key in self._places and key not in places]
        return _Undo(self.counts.copy(), places,
                     [(place, self.tasks[['outer', 'outer_end']][place.span].copy()) for place in stay])

    def _undo(self) -> None:
        undo = self._last
        for key in undo.places:
            if key in self._places:
                self._take_out(key)
        for place in undo.places.values():
            if place is not None:
                self._bring_in(place)
        for place, outer in undo.outers:
            self.tasks[['outer', 'outer_end']][place.span] = outer
        self.counts[:] = undo.counts

    def _take_out(self, key: int) -> None:
        place = self._places.pop(key)
        self.alive[place.slot] = 0
        self.counts[4] -= place.block.size
        for read in place.block.reads:
            self._readers[read.key].pop(key, None)  # it may wait for several tasks there

    def _bring_in(self, place: _Slot) -> None:
        key = place.block.key
        self._places[key] = place
        self.alive[place.slot] = 1
        self.counts[4] += place.block.size
        for read in place.block.reads:
            self._readers.setdefault(read.key, {})[key] = None

    def _put(self, blocks: Sequence[TaskBlock]) -> None:
        """Add blocks; :meth:`_connect` follows."""
        if not blocks:
            return
        used, used_inner, _, used_slots, _ = self.counts.tolist()
        sizes = np.array([block.size for block in blocks])
        inner = np.array([len(block.content.targets) for block in blocks])
        ends, inner_ends = used + sizes.cumsum(), used_inner + inner.cumsum()
        bases, inner_bases = ends - sizes, inner_ends - inner
        tasks = self.tasks[used:ends[-1]]
        joined_tasks([block.content for block in blocks], tasks)
        shift = inner_bases.repeat(sizes).astype(np.int32)
        tasks['inner'] += shift
        tasks['inner_end'] += shift
        tasks['order'] += order_of(np.array([block.key for block in blocks])).repeat(sizes)
        targets = self.targets[used_inner:inner_ends[-1]]
        np.concatenate([block.content.targets for block in blocks], out=targets)
        targets += bases.repeat(inner).astype(np.int32)
        slots = slice(used_slots, used_slots + len(blocks))
        self.bases[slots], self.sizes[slots], self.keys[slots] = bases, sizes, [block.key for block in blocks]
        for slot, (block, base) in enumerate(zip(blocks, bases.tolist()), used_slots):
            self._bring_in(_Slot(block, slot, base))
        self.counts[0], self.counts[1], self.counts[3] = ends[-1], inner_ends[-1], slots.stop

    def _connect(self, keys: Iterable[int]) -> None:
        """Write anew which tasks of other blocks come after those of blocks of these keys."""
        for key in keys:
            if key not in self._places:
                continue
            place = self._places[key]
            table = place.block.content.table
            before, after = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
            for reader in self._readers.get(key, ()):
                for read in self._reads(reader, key):
                    index = table[np.minimum(read.waits.ports + read.shift, len(table) - 1)]
                    before.append(index[index >= 0])
                    after.append(read.waits.tasks[index >= 0] + np.int32(self._places[reader].base))
            befores, afters = np.concatenate(before), np.concatenate(after)
            ends = np.bincount(befores, minlength=place.block.size).cumsum() + self.counts[2]
            tasks = self.tasks[place.span]
            tasks['outer_end'] = ends
            tasks['outer'][1:], tasks['outer'][:1] = ends[:-1], self.counts[2]
            self.outer_targets[self.counts[2]:][:len(afters)] = afters[befores.argsort(kind='stable')]
            self.counts[2] += len(afters)

    def _outer_of(self, place: _Slot) -> np.ndarray:
        """Tasks in other blocks that wait for any of a block."""
        if not place.block.size:
            return np.empty(0, np.int32)
        first, last = self.tasks[place.base], self.tasks[place.base + place.block.size - 1]
        return self.outer_targets[first['outer']:last['outer_end']].copy()

    def _living(self, tasks: np.ndarray) -> np.ndarray:
        """Those whose blocks are there."""
        owners = np.searchsorted(self.bases[:self.counts[3]], tasks, side='right') - 1
        return tasks[self.alive[owners] > 0]


def _room(sizes: Iterable[int]) -> int:
    return _SPARE * sum(sizes) + _LEAST


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """All of them, joined."""
    ends = counts.cumsum(dtype=np.int64)
    return np.arange(ends[-1] if len(ends) else 0) + (starts - (ends - counts)).repeat(counts)
