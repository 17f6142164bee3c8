"""The task table in Python: ``src/task_table.cc`` writes the same arrays, to the last bit, and faster."""
from typing import NamedTuple

import numpy as np

from mxhybrid.planner.simulator.task_block import INDEX_BITS, TASK, TaskBlock
from mxhybrid.planner.simulator.task_table import Replacement, TaskTable, ranges


class _LiveBlock(NamedTuple):
    """A block, its slot, and its tasks: from `base` on."""

    block: TaskBlock
    slot: int
    base: int

    @property
    def span(self):
        return slice(self.base, self.base + self.block.size)


class _Undo(NamedTuple):
    """The state before a change.

    Attributes
    ----------
    counts : numpy.ndarray
    blocks : dict of int to _LiveBlock or None
        By key: the block that was live.
    outer_ranges : list of (_LiveBlock, numpy.ndarray)
        Blocks that stayed, and the ranges of their outer successors.
    """

    counts: np.ndarray
    blocks: dict
    outer_ranges: list


class PythonTaskTable(TaskTable):
    """A task table that Python changes."""

    def __init__(self, blocks, expected=()):
        super().__init__(blocks, expected)
        self._live = {}
        #: By key: the keys of live blocks that depend on the block of that key, as a dict, for its order.
        self._dependents = {}
        self._last = None
        self.replace({block.key: block for block in blocks})

    def _replace(self, blocks):
        new_blocks = [block for block in blocks.values() if block is not None]
        old_blocks = [self._live[key] for key in blocks if key in self._live]
        # The blocks whose outer successors change.
        affected = dict.fromkeys(blocks)
        for block in [live.block for live in old_blocks] + new_blocks:
            affected.update(dict.fromkeys(block_input.key for block_input in block.inputs))
        if not self._has_capacity(new_blocks, affected):
            return None
        self._last = self._save(blocks, affected)
        changed = [self._outer_successors_of(live) for live in old_blocks]
        first_new = self.used
        for live in old_blocks:
            self._take_out(live.block.key)
        self._append(new_blocks)
        for key in affected:
            if key in self._live:
                self._connect(self._live[key])
        changed += [self._outer_successors_of(self._live[block.key]) for block in new_blocks]
        removed = ranges(np.array([live.base for live in old_blocks], int),
                         np.array([live.block.size for live in old_blocks], int))
        return Replacement(first_new, self._only_live(np.concatenate([np.arange(first_new, self.used)] + changed)),
                           removed)

    def _has_capacity(self, blocks, affected):
        tasks = sum(block.size for block in blocks)
        inner = sum(len(block.content.successors) for block in blocks)
        outer = sum(len(block_input.dependencies) for block in blocks for block_input in block.inputs)
        for key in affected:
            for dependent in self._dependents.get(key, ()):
                outer += sum(len(block_input.dependencies) for block_input in self._inputs_of(dependent, key))
        used_tasks, used_inner, used_outer, used_slots = self.counts[:4].tolist()
        return (used_tasks + tasks <= len(self.tasks) and used_inner + inner <= len(self.successors)
                and used_outer + outer <= len(self.outer_successors) and used_slots + len(blocks) <= len(self.bases))

    def _inputs_of(self, dependent, key):
        return [block_input for block_input in self._live[dependent].block.inputs if block_input.key == key]

    def _save(self, keys, affected):
        blocks = {key: self._live.get(key) for key in keys}
        staying = [self._live[key] for key in affected if key in self._live and key not in blocks]
        return _Undo(self.counts.copy(), blocks,
                     [(live, self.tasks[['outer', 'outer_end']][live.span].copy()) for live in staying])

    def _rollback(self):
        undo = self._last
        for key in undo.blocks:
            if key in self._live:
                self._take_out(key)
        for live in undo.blocks.values():
            if live is not None:
                self._bring_in(live)
        for live, outer_ranges in undo.outer_ranges:
            self.tasks[['outer', 'outer_end']][live.span] = outer_ranges
        self.counts[:] = undo.counts

    def _take_out(self, key):
        live = self._live.pop(key)
        self.alive[live.slot] = 0
        self.counts[4] -= live.block.size
        for block_input in live.block.inputs:
            self._dependents[block_input.key].pop(key, None)  # a block may have several inputs of one key

    def _bring_in(self, live):
        key = live.block.key
        self._live[key] = live
        self.alive[live.slot] = 1
        self.counts[4] += live.block.size
        for block_input in live.block.inputs:
            self._dependents.setdefault(block_input.key, {})[key] = None

    def _append(self, blocks):
        """Append blocks; their outer successors are written by :meth:`_connect`."""
        if not blocks:
            return
        used, used_inner, _, used_slots, _ = self.counts.tolist()
        sizes = np.array([block.size for block in blocks])
        inner = np.array([len(block.content.successors) for block in blocks])
        ends, inner_ends = used + sizes.cumsum(), used_inner + inner.cumsum()
        bases, inner_bases = ends - sizes, inner_ends - inner
        tasks = self.tasks[used:ends[-1]]
        tasks[:] = concatenated_tasks([block.content for block in blocks])
        shift = inner_bases.repeat(sizes).astype(np.int32)
        tasks['inner'] += shift
        tasks['inner_end'] += shift
        tasks['order'] += (np.array([block.key for block in blocks]) << INDEX_BITS).repeat(sizes)
        successors = self.successors[used_inner:inner_ends[-1]]
        np.concatenate([block.content.successors for block in blocks], out=successors)
        successors += bases.repeat(inner).astype(np.int32)
        slots = slice(used_slots, used_slots + len(blocks))
        self.bases[slots], self.sizes[slots], self.keys[slots] = bases, sizes, [block.key for block in blocks]
        for slot, (block, base) in enumerate(zip(blocks, bases.tolist()), used_slots):
            self._bring_in(_LiveBlock(block, slot, base))
        self.counts[0], self.counts[1], self.counts[3] = ends[-1], inner_ends[-1], slots.stop

    def _connect(self, live):
        """Write the outer successors of a block."""
        output_tasks, key = live.block.content.output_tasks, live.block.key
        sources, targets = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
        for dependent in self._dependents.get(key, ()):
            for _, dependencies, offset in self._inputs_of(dependent, key):
                tasks = output_tasks[np.minimum(dependencies.outputs + offset, len(output_tasks) - 1)]
                sources.append(tasks[tasks >= 0])
                targets.append(dependencies.tasks[tasks >= 0] + np.int32(self._live[dependent].base))
        sources, targets = np.concatenate(sources), np.concatenate(targets)
        ends = np.bincount(sources, minlength=live.block.size).cumsum() + self.counts[2]
        records = self.tasks[live.span]
        records['outer_end'] = ends
        records['outer'][1:], records['outer'][:1] = ends[:-1], self.counts[2]
        self.outer_successors[self.counts[2]:][:len(targets)] = targets[sources.argsort(kind='stable')]
        self.counts[2] += len(targets)

    def _outer_successors_of(self, live):
        if not live.block.size:
            return np.empty(0, np.int32)
        first, last = self.tasks[live.base], self.tasks[live.base + live.block.size - 1]
        return self.outer_successors[first['outer']:last['outer_end']].copy()

    def _only_live(self, tasks):
        slots = np.searchsorted(self.bases[:self.counts[3]], tasks, side='right') - 1
        return tasks[self.alive[slots] > 0]


def concatenated_tasks(contents):
    """Return the tasks of several blocks, one after the other."""
    return np.concatenate([content.tasks for content in contents]) if contents else np.empty(0, TASK)
