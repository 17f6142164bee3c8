"""The changes of a dynamic table from one checkpoint to another, for programs that keep a copy of its rows."""
import os
from typing import Any, ContextManager, Iterator, List, NamedTuple, Optional, Tuple, Union

import numpy as np

from ..base.errors import CheckpointError, InputError
from ..row_store.row_files import widened
from . import folder, layers
from .read_only import OpenCheckpoint, ReadOnlyTable, open_checkpoint


class ChangedRows(NamedTuple):
    """A batch of changes; no key is in two batches.

    Attributes
    ----------
    keys : numpy.ndarray of int64, shape (n,)
        Keys whose rows are new or have changed.
    rows : numpy.ndarray, shape (n, width)
        Their rows.
    removed : numpy.ndarray of int64, shape (m,)
        Keys that have no row any more; some of them may never have had one in the earlier checkpoint.
    """

    keys: np.ndarray
    rows: np.ndarray
    removed: np.ndarray


class Changes(ContextManager['Changes']):
    """The changes that :func:`changes` found: an iterable of :class:`ChangedRows`, and a context manager.

    The checkpoints are not removed before the end of the ``with`` block.

    Attributes
    ----------
    name : str
        The name of the later checkpoint, for the next call.
    step : int
        Its step.
    """

    def __init__(self, later: OpenCheckpoint, earlier: Optional[OpenCheckpoint], tables: List[ReadOnlyTable],
                 deltas: Optional[layers.Layers], batch_rows: int):
        self.name, self.step = os.path.basename(later.path), later.step
        self._checkpoints = [checkpoint for checkpoint in (later, earlier) if checkpoint is not None]
        self._tables, self._deltas, self._batch_rows = tables, deltas, batch_rows

    def __iter__(self) -> Iterator[ChangedRows]:
        no_keys, no_rows = np.empty(0, np.int64), np.empty((0, self._tables[0].width), self._tables[0].dtype)
        for keys, rows in self._updated():
            for start in range(0, len(keys), self._batch_rows):
                piece = slice(start, start + self._batch_rows)
                yield ChangedRows(keys[piece], rows[piece], no_keys)
        for keys in self._removed():
            for start in range(0, len(keys), self._batch_rows):
                yield ChangedRows(no_keys, no_rows, keys[start:start + self._batch_rows])

    def _updated(self) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
        later = self._tables[0]
        for keys, columns in layers.merged(later.layers if self._deltas is None else self._deltas,
                                           later.description, ('rows',)):
            rows = widened(columns['rows'], later.dtype)
            for earlier in self._tables[1:]:
                rows_before = np.zeros_like(rows)
                has_row = layers.find_rows(earlier.layers, keys, 'rows', rows_before)
                is_changed = ~has_row | (rows.view(np.uint8) != rows_before.view(np.uint8)).any(axis=1)
                keys, rows = keys[is_changed], rows[is_changed]
            yield keys, rows

    def _removed(self) -> Iterator[np.ndarray]:
        if self._deltas is not None:
            yield from layers.removed_keys(self._deltas)
        for earlier in self._tables[1:]:
            for keys, _ in layers.merged(earlier.layers, earlier.description, ()):
                yield keys[~self._tables[0].contains(keys)]

    def close(self) -> None:
        """Let writers remove the checkpoints."""
        for checkpoint in self._checkpoints:
            checkpoint.close()

    def __exit__(self, *exception: Any) -> None:
        self.close()


def changes(directory: Any, table: str, since: Union[int, str, None], *, batch_rows: int = 1 << 16) -> Changes:
    """Return the changes of a dynamic table from an earlier checkpoint to the newest one, without MXNet and a job.

    If the newest checkpoint is a delta that builds on the earlier one, only the deltas between are read; otherwise,
    as after ``compact``, the rows of both are compared.  Memory is bounded in both cases.

    Parameters
    ----------
    directory : str or path
        The directory that :func:`save` writes to, or that of the later checkpoint.
    table : str
        The name of a dynamic table.
    since : int, str or None
        The earlier checkpoint: its step, or its name, :attr:`Changes.name` of the call before.  A job that went back
        may save a step twice, a name never occurs twice.  None: all rows of the later checkpoint.
    batch_rows : int
        The most keys of a batch.

    Raises
    ------
    InputError
        There is no such dynamic table, or `batch_rows` is no count.
    CheckpointError
        There is no checkpoint, none is whole, or the earlier one is gone.
    """
    if isinstance(batch_rows, bool) or not isinstance(batch_rows, int) or batch_rows < 1:
        raise InputError('changes: batch_rows=%r is not a count: give an integer of at least 1' % (batch_rows,))
    later = open_checkpoint(directory)
    try:
        return _changes_of(later, table, since, batch_rows)
    except BaseException:
        later.close()
        raise


def _changes_of(later: OpenCheckpoint, table: str, since: Union[int, str, None], batch_rows: int) -> Changes:
    tables = [_table_of(later, table)]
    if since is None:
        return Changes(later, None, tables, None, batch_rows)
    directory = os.path.dirname(later.path)
    named = [name for name in folder.names(directory) if _is_meant(name, since)]
    if not named:
        raise CheckpointError('changes: the checkpoint since=%r is gone from %s, which has %s: give since=None, and '
                              'replace the whole copy'
                              % (since, directory, ', '.join(reversed(folder.names(directory)))))
    numbers = [folder.number_of(name) for name in later.chain]
    number = folder.number_of(named[0])
    deltas = numbers.index(number) if number in numbers else len(numbers)
    if deltas < len(tables[0].layers):
        return Changes(later, None, tables, tables[0].layers[:deltas], batch_rows)
    earlier = open_checkpoint(os.path.join(directory, named[0]))
    if table in earlier:
        tables.append(_table_of(earlier, table))
        for option in ('width', 'dtype'):
            values = [getattr(one, option) for one in tables]
            if values[0] != values[1]:
                raise InputError('changes: %s has %s %s in %s, %s in %s: give since=None, and replace the whole copy'
                                 % (table, option, values[1], earlier.path, values[0], later.path))
    return Changes(later, earlier, tables, None, batch_rows)


def _is_meant(name: str, since: Union[int, str]) -> bool:
    """Return whether a checkpoint has the step or the name `since`; compaction changes the name's end only."""
    if isinstance(since, str):
        return name.replace(folder.COMPACTED, '') == since.replace(folder.COMPACTED, '')
    return folder.step_of(name) == since


def _table_of(checkpoint: OpenCheckpoint, name: str) -> ReadOnlyTable:
    table = checkpoint[name] if name in checkpoint else None
    if not isinstance(table, ReadOnlyTable):
        names = sorted(key for key, value in checkpoint.items() if isinstance(value, ReadOnlyTable))
        raise InputError('changes: %s has no dynamic table %r: give one of %s'
                         % (checkpoint.path, name, ', '.join(names) or 'a job that trains one'))
    return table
