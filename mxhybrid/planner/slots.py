"""Where the tasks of all blocks lie: one array, to which changes only append.

A rejected change is taken back by forgetting what was appended.  What accepted ones leave behind is dropped when there
is no more room, by laying all blocks out anew.
"""
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from .block import TASK, Block, joined_tasks, order_of

#: How much is set aside for what the first blocks need, and beside that; memory that is not touched costs nothing.
_SPARE, _LEAST = 3, 1024


class Slot(NamedTuple):
    """A block, and the tasks that are its own: `base` up to `base` + its size."""

    block: Block
    slot: int
    base: int

    @property
    def span(self) -> slice:
        return slice(self.base, self.base + self.block.size)


class Undo(NamedTuple):
    """How it was before a change."""

    used: Tuple[int, int, int, int]
    #: By key, the block that was there, or None.
    places: Dict[int, Optional[Slot]]
    #: Blocks that stayed, and where their successors in other blocks were.
    outers: List[Tuple[Slot, np.ndarray]]


class Slots:
    """Tasks, their successors, and which of them live.

    Attributes
    ----------
    tasks : numpy.ndarray of TASK
    targets : numpy.ndarray of int32
        Successors in the same block, of all tasks.
    outer_targets : numpy.ndarray of int32
        Successors in other blocks.
    bases, sizes : numpy.ndarray of int32
        Of slots: the first task, and how many there are.
    alive : numpy.ndarray of uint8
        Of slots: whether its block is part of the step.
    """

    def __init__(self, blocks: Sequence[Block]):
        """For these blocks, and as many others as come with changes of them; :meth:`put` puts them in."""
        tasks = sum(block.size for block in blocks)
        inner = sum(len(block.targets) for block in blocks)
        outer = sum(len(own) for block in blocks for own, _ in block.reads.values())
        self.tasks = np.empty(_SPARE * tasks + _LEAST, TASK)
        self.targets = np.empty(_SPARE * inner + _LEAST, np.int32)
        self.outer_targets = np.empty(_SPARE * outer + _LEAST, np.int32)
        slots = _SPARE * len(blocks) + _LEAST
        self.bases, self.sizes = np.empty(slots, np.int32), np.empty(slots, np.int32)
        self.alive = np.zeros(slots, np.uint8)
        self.used = self.used_inner = self.used_outer = self.used_slots = 0
        self.live_tasks = 0
        self.places: Dict[int, Slot] = {}
        #: Who waits for a block, if it is there: keys, of which the values say nothing.
        self._readers: Dict[int, Dict[int, None]] = {}

    def has_room(self, blocks: Sequence[Block], touched: Iterable[int]) -> bool:
        """Whether these blocks can be put in; `touched` are keys of all whose successors are then written anew."""
        tasks = sum(block.size for block in blocks)
        inner = sum(len(block.targets) for block in blocks)
        outer = sum(len(own) for block in blocks for own, _ in block.reads.values())
        for key in touched:
            for reader in self._readers.get(key, ()):
                outer += len(self.places[reader].block.reads[key][0])
        return (self.used + tasks <= len(self.tasks) and self.used_inner + inner <= len(self.targets)
                and self.used_outer + outer <= len(self.outer_targets)
                and self.used_slots + len(blocks) <= len(self.bases))

    def mark(self, keys: Iterable[int], touched: Iterable[int]) -> Undo:
        """What :meth:`undo` needs if blocks of these keys change, and with them successors of those touched."""
        places = {key: self.places.get(key) for key in keys}
        stay = [self.places[key] for key in touched if key in self.places and key not in places]
        return Undo((self.used, self.used_inner, self.used_outer, self.used_slots), places,
                    [(place, self.tasks[['outer', 'outer_end']][place.span].copy()) for place in stay])

    def undo(self, undo: Undo) -> None:
        """Back to where :meth:`mark` was called."""
        for key in undo.places:
            if key in self.places:
                self.take_out(key)
        for place in undo.places.values():
            if place is not None:
                self._bring_in(place)
        for place, outer in undo.outers:
            self.tasks[['outer', 'outer_end']][place.span] = outer
        self.used, self.used_inner, self.used_outer, self.used_slots = undo.used

    def take_out(self, key: int) -> Slot:
        """Remove a block."""
        place = self.places.pop(key)
        self.alive[place.slot] = 0
        self.live_tasks -= place.block.size
        for other in place.block.reads:
            del self._readers[other][key]
        return place

    def _bring_in(self, place: Slot) -> None:
        key = place.block.key
        self.places[key] = place
        self.alive[place.slot] = 1
        self.live_tasks += place.block.size
        for other in place.block.reads:
            self._readers.setdefault(other, {})[key] = None

    def put(self, blocks: Sequence[Block]) -> None:
        """Add blocks; :meth:`connect` follows."""
        if not blocks:
            return
        sizes = np.array([block.size for block in blocks])
        inner = np.array([len(block.targets) for block in blocks])
        ends, inner_ends = self.used + sizes.cumsum(), self.used_inner + inner.cumsum()
        bases, inner_bases = ends - sizes, inner_ends - inner
        span, inner_span = slice(self.used, ends[-1]), slice(self.used_inner, inner_ends[-1])
        tasks = self.tasks[span]
        joined_tasks(blocks, self.tasks[span])
        shift = inner_bases.repeat(sizes).astype(np.int32)
        tasks['inner'] += shift
        tasks['inner_end'] += shift
        tasks['order'] += order_of(np.array([block.key for block in blocks])).repeat(sizes)
        targets = self.targets[inner_span]
        np.concatenate([block.targets for block in blocks], out=targets)
        targets += bases.repeat(inner).astype(np.int32)
        slots = slice(self.used_slots, self.used_slots + len(blocks))
        self.bases[slots], self.sizes[slots] = bases, sizes
        for slot, (block, base) in enumerate(zip(blocks, bases.tolist()), self.used_slots):
            self._bring_in(Slot(block, slot, base))
        self.used, self.used_inner, self.used_slots = int(ends[-1]), int(inner_ends[-1]), slots.stop

    def connect(self, keys: Iterable[int]) -> None:
        """Write anew which tasks of other blocks come after those of blocks of these keys."""
        found = [self.places[key] for key in keys if key in self.places]
        if not found:
            return
        sizes = np.array([place.block.size for place in found])
        bases = np.array([place.base for place in found])
        tables = np.array([len(place.block.table) for place in found])
        local, table = sizes.cumsum() - sizes, tables.cumsum() - tables
        which: List[int] = []  # of found, for each block that waits for it
        owns: List[np.ndarray] = []
        ports: List[np.ndarray] = []
        own_bases: List[int] = []
        for number, place in enumerate(found):
            key = place.block.key
            for reader in self._readers.get(key, ()):
                reading = self.places[reader]
                own, port = reading.block.reads[key]
                which.append(number)
                owns.append(own)
                ports.append(port)
                own_bases.append(reading.base)
        total = int(sizes.sum())
        before, after = np.empty(0, np.int64), np.empty(0, np.int32)
        if owns:
            lengths = np.array([len(own) for own in owns])
            numbers = np.array(which).repeat(lengths)
            after = np.concatenate(owns) + np.array(own_bases, np.int32).repeat(lengths)
            at = np.minimum(np.concatenate(ports), tables[numbers] - 1) + table[numbers]
            index = np.concatenate([place.block.table for place in found])[at]
            there = index >= 0
            before = (index + local[numbers])[there]
            after = after[there][before.argsort(kind='stable')]
        counts = np.bincount(before, minlength=total)
        ends = counts.cumsum() + self.used_outer
        starts = ends - counts
        at_all = np.arange(total) + (bases - local).repeat(sizes)
        self.tasks['outer'][at_all] = starts
        self.tasks['outer_end'][at_all] = ends
        self.outer_targets[self.used_outer:self.used_outer + len(after)] = after
        self.used_outer += len(after)

    def outer_of(self, place: Slot) -> np.ndarray:
        """Tasks in other blocks that wait for any of a block."""
        if not place.block.size:
            return np.empty(0, np.int32)
        first, last = self.tasks[place.base], self.tasks[place.base + place.block.size - 1]
        return self.outer_targets[first['outer']:last['outer_end']]

    def live(self) -> np.ndarray:
        """Numbers of all tasks that live, block by block."""
        slots = np.flatnonzero(self.alive[:self.used_slots])
        return ranges(self.bases[slots], self.sizes[slots])

    def edges(self, tasks: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """All pairs of a task, one of these, and another that comes after it."""
        befores, afters = [], []
        for name, targets in (('inner', self.targets), ('outer', self.outer_targets)):
            start = self.tasks[name][tasks]
            count = self.tasks[name + '_end'][tasks] - start
            befores.append(tasks.repeat(count))
            afters.append(targets[ranges(start, count)])
        return np.concatenate(befores), np.concatenate(afters)


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """All of them, joined."""
    ends = counts.cumsum(dtype=np.int64)
    return np.arange(ends[-1] if len(ends) else 0) + (starts - (ends - counts)).repeat(counts)
