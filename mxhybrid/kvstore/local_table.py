"""A dynamic table whose rows are in this process: the table of a job of one process, and first values without a job."""
import os
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence

import numpy as np

from ..base.memory_copy import work_on_copy
from ..lane.keyed_rows import KeyedRows
from ..native.optimizer_state import state_widths
from ..native.optimizers import TableOptimizer
from ..row_store.row_files import Marks
from ..row_store.row_store import FirstValues, RowStore, naming_table, newest_parts
from ..servers.kernel_rules import kernel_rule
from ..servers.optimized_table import OptimizedTable, Saved


class LocalTable(OptimizedTable):
    """A table with the calls of :class:`mxhybrid.servers.dynamic_table.DynamicTable`.

    `options` are those of its rows' store.  With a `directory`, the rows are in files there, which vanish with the
    table.
    """

    partitions = 1
    row_bytes = 0  # no row travels

    def __init__(self, name: str, width: int, dtype: Any, first_values: FirstValues, options: Mapping[str, Any],
                 directory: str = '', resident_bytes: int = 0):
        super().__init__(name, width, dtype)
        #: The store of the rows, in memory or in files.
        self.store = RowStore(width, self.dtype, first_values, **options, directory=directory,
                              resident_bytes=resident_bytes)
        self.is_in_memory = not directory
        self._optimizer: Optional[TableOptimizer] = None
        self._has_state = False
        #: The array that pushes overwrite: -1 for rows, or the number of one of optimizer state; None for an update.
        self._assigned_slot: Optional[int] = None

    def pull(self, keys: np.ndarray, result: np.ndarray, priority: int = 0) -> None:
        result[:] = self.store.read(keys)

    @staticmethod
    def deliver(tables: Sequence['LocalTable'], rows: Sequence[KeyedRows], array: Any, priority: int = 0) -> None:
        for table, part in zip(tables, rows):
            part.write(table.store.read(part.keys))

    @staticmethod
    def push_all(tables: Sequence['LocalTable'], rows: Sequence[KeyedRows], priority: int = 0) -> None:
        for table, part in zip(tables, rows):
            table.push(part.keys, part.sums())

    def prefetch(self, keys: np.ndarray, priority: int = 0, after_push: bool = False) -> None:
        """Do nothing: the rows are here."""

    def push(self, keys: np.ndarray, rows: np.ndarray, priority: int = 0) -> None:
        with naming_table(self.name):
            if self._assigned_slot is not None:
                if self._assigned_slot < 0:
                    self.store.assign(keys, rows)
                else:
                    self.store.assign_state(self._assigned_slot, keys, rows)
                return
            assert self._optimizer is not None
            rule, settings = kernel_rule(self._optimizer.live, self._has_state)
            self.store.update(rule, settings, keys, rows)

    def statistics(self) -> Dict[str, int]:
        return self.store.statistics()

    def cache_counts(self) -> Dict[str, int]:
        return {}  # the rows are here, and no cache is needed

    @contextmanager
    def assigning(self, slot: int = -1) -> Iterator[None]:
        former_slot, self._assigned_slot = self._assigned_slot, slot
        try:
            yield
        finally:
            self._assigned_slot = former_slot

    @staticmethod
    def at_rest(tables: Sequence['LocalTable'], act: Callable[[], Any]) -> Any:
        return act()  # no other worker pushes or pulls

    def save(self, directory: str, since: Optional[Marks], token: str) -> Saved:
        with naming_table(self.name):
            return Saved({'0': self.store.save(os.path.join(directory, '0'), since['0'] if since else None)}, [])

    @staticmethod
    def save_copies(tables: Sequence['LocalTable'], directories: Sequence[str], since: Sequence[Optional[Marks]],
                    token: str, results: str) -> Optional[List[str]]:
        """Let a copy of this process save the tables, while the process goes on."""
        def save() -> Dict[str, Any]:
            return {directory: table.save(directory, marks, token).parts
                    for table, directory, marks in zip(tables, directories, since)}

        files = [os.path.join(results, '0.json')]
        work_on_copy(save, files[0])
        for table in tables:
            table.store.mark()
        return files

    def hosts_without(self, file: str) -> List[str]:
        return []  # the rows are in the process that writes the file

    def load(self, directories: Sequence[str], clock: int) -> None:
        self.store.clear()
        self.store.set_clock(clock)
        with naming_table(self.name):
            for directory in directories:
                self.store.load(directory)
            for directory in newest_parts(directories):
                self.store.load_waiting(directory)

    def close(self) -> None:
        self.store.close()

    def _tell_optimizer(self, reference: str, attributes: Dict[str, Any], count: Optional[int]) -> None:
        assert self._made_with is not None
        if self._optimizer is None or self._optimizer.reference != reference:
            self._optimizer = TableOptimizer(reference, attributes, self._made_with[1])
            widths = state_widths(self._optimizer.maker, 0, (1, self.width), self.dtype)
            with naming_table(self.name):
                self.store.set_state_widths([])
                self.store.set_state_widths(widths)
            self._has_state = bool(widths)
        else:
            self._optimizer.change(attributes)
        if count is not None:
            self.store.set_updates(count)

    def _drop_optimizer(self) -> None:
        self._optimizer, self._has_state = None, False
        with naming_table(self.name):
            self.store.set_state_widths([])
        self.store.set_updates(0)
