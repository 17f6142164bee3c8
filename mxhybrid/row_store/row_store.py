"""Rows of a dynamic table in this process: a table of which only the rows that were touched exist, see
``src/store/row_store.h``.

A row has a key, any int64.  A key without a row reads as its first values, a function of seed, key and column; the row
itself is made by the first update that has the key.
"""
import ctypes
import os
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from ..base.errors import InputError, JobError
from . import library, row_files

#: The types of the elements of dynamic tables.
DTYPES = ('float32', 'float64')
#: The fields of ``struct RowStoreStatistics``.
_STATISTICS = ('rows', 'slots', 'memory_bytes', 'file_bytes', 'resident_bytes', 'admitted',
               'waiting', 'expired', 'updates')
#: The kinds of first values, by the numbers of ``src/store/first_values.h``.
_KINDS = ('zero', 'constant', 'uniform', 'normal')
#: The most columns of a table.
_MAX_WIDTH = 1 << 24


class FirstValues(NamedTuple):
    """The values that rows begin with: a function of seed, key and column alone."""

    #: 'zero', 'constant', 'uniform' (from -`value` to `value`) or 'normal' (mean 0, standard deviation `value`).
    kind: str = 'zero'
    value: float = 0.0
    #: 0 to 2^64 - 1.
    seed: int = 0

    def for_library(self) -> Tuple[int, float, int]:
        """Return the parameters of compiled functions; InputError if a value is not valid."""
        if self.kind not in _KINDS:
            raise InputError('first values: kind %r is unknown: give one of %s' % (self.kind, ', '.join(_KINDS)))
        if not np.isfinite(self.value):
            raise InputError('first values: %r is not finite: give a finite number' % (self.value,))
        if not 0 <= self.seed < 1 << 64:
            raise InputError('first values: seed %r: give an integer from 0 to 2^64 - 1' % (self.seed,))
        return _KINDS.index(self.kind), float(self.value), self.seed


#: The first values of a table that begins with zeros.
ZERO = FirstValues()


class RowStoreOptions(NamedTuple):
    """Admission, expiry and storage of the rows of a dynamic table, or of one partition of it."""

    #: A key gets a row after this number of updates that have it.
    admit: int = 1
    #: The most rows after an update; 0: no limit.
    capacity: int = 0
    #: Rows that were not updated for this number of updates of the table are removed; 0: never.
    expire_after: int = 0
    #: The rows that leave a table over its capacity: 'lru', the least recently updated, or 'rarest', those with the
    #: fewest updates.
    evict: str = 'lru'
    #: The directory, on the host of the rows, of the files with keys, rows and optimizer state, which stores may share;
    #: '': they are in memory.  Files lose their names when they are made, so they disappear with the process, however
    #: it ends.
    directory: str = ''
    #: The memory of a cache of rows and state in files, which has 1 MB at least; 0: files are mapped, and the system
    #: decides which of their pages are in memory.
    resident_bytes: int = 0
    #: 'float16' or 'bfloat16': the type of rows of float32 in memory and files, which are rounded to nearest after each
    #: update; optimizer state stays float32.
    row_dtype: str = ''

    def check(self, prefix: str = '') -> None:
        """Refuse values that are not valid (InputError); `prefix` begins the message."""
        for option, least, most in (('admit', 1, (1 << 15) - 1), ('capacity', 0, (1 << 32) - 1),
                                    ('expire_after', 0, (1 << 32) - 1), ('resident_bytes', 0, 1 << 62)):
            value = getattr(self, option)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value <= most:
                raise InputError('%s%s=%r: give an integer from %d to %d' % (prefix, option, value, least, most))
        if self.evict not in ('lru', 'rarest'):
            raise InputError('%sevict=%r: give one of lru, rarest' % (prefix, self.evict))
        if self.row_dtype not in row_files.ROW_DTYPES:
            raise InputError("%srow_dtype=%r: give 'float16' or 'bfloat16', or '' for the type of the table"
                             % (prefix, self.row_dtype))

    def of_partition(self, partitions: int, own_partitions: int) -> 'RowStoreOptions':
        """Return the options of one of the partitions of a table, of which this server owns some."""
        return self._replace(capacity=self.capacity // partitions,
                             resident_bytes=self.resident_bytes // max(1, own_partitions))

    def for_library(self) -> Tuple[Any, ...]:
        """Return the parameters of compiled functions."""
        return (self.admit, self.capacity, self.expire_after, int(self.evict == 'rarest'), os.fsencode(self.directory),
                self.resident_bytes, row_files.ROW_DTYPES.index(self.row_dtype))


@contextmanager
def naming_table(name: str) -> Iterator[None]:
    """Name a table in errors of its row store, such as those about memory, or room on the disk."""
    try:
        yield
    except JobError as error:
        raise JobError('%s: %s' % (name, error)) from None


def as_keys(keys: Any) -> np.ndarray:
    """Return keys as a contiguous array of int64 with one dimension; raise InputError if they are no integers."""
    array = np.asarray(keys)
    if array.dtype.kind not in 'iu' and array.size:
        raise InputError('keys of type %s: give integers; a float holds only integers up to 2^24 (float32) or 2^53 '
                         '(float64)' % array.dtype)
    if array.dtype == np.uint64 and array.size and array.max() >= 1 << 63:
        raise InputError('key %d is not below 2^63: give keys of type int64, for example by keys.view("int64")'
                         % array.max())
    return np.ascontiguousarray(array, np.int64).reshape(-1)


def partition_of(keys: Any, count: int) -> np.ndarray:
    """Return the partition of each key among `count` partitions: the key's hash modulo `count`, uint32."""
    return row_files.partition_numbers(library.load(), as_keys(keys), count)


def newest_parts(directories: Sequence[str]) -> List[str]:
    """Return the folders of the newest checkpoint among folders of parts, from old to new: all that stand in the same
    directory as the last folder.
    """
    return [path for path in directories if os.path.dirname(path) == os.path.dirname(directories[-1])]


def check_capacity(name: str, keys: np.ndarray, capacity: int, partitions: int) -> None:
    """Refuse distinct keys of a step that do not fit into a table with this capacity, 0 for none (InputError).

    Each partition has an equal part of the capacity, so the keys of the fullest partition decide.  The keys of other
    workers are not known here; the server checks their union.
    """
    if not capacity or not len(keys):
        return
    most_keys, part_capacity = int(np.bincount(partition_of(keys, partitions)).max()), capacity // partitions
    if most_keys > part_capacity:
        shares = ' with %d rows for each of %d partitions, and one of them has %d of the keys' % (
            part_capacity, partitions, most_keys) if partitions > 1 else ''
        raise InputError('%s: a step has %d distinct keys, but capacity=%d%s: give a capacity of several times the '
                         'distinct keys of a step, or use smaller batches' % (name, len(keys), capacity, shares))


def check_row_dtype(prefix: str, dtype: Any, row_dtype: str) -> None:
    """Refuse a table of float64 that shall keep its rows in another type (InputError)."""
    if row_dtype and np.dtype(dtype) != np.float32:
        raise InputError("%srow_dtype=%r is for tables of float32, and this one has %s: give it dtype='float32'"
                         % (prefix, row_dtype, np.dtype(dtype).name))


class RowStore:
    """The rows of a dynamic table, or of one partition of it, in this process.

    Known limits: 2^31 rows; optimizers with a compiled kernel; keys are not protected against an adversary who chooses
    them so that their hashes collide.  One thread uses a store at a time.

    - `width`: the number of columns.
    - `dtype`: 'float32' or 'float64'.
    - `initializer`: the values that rows begin with.
    - `**options`: the fields of :class:`RowStoreOptions`.
    """

    def __init__(self, width: int, dtype: Any = 'float32', initializer: FirstValues = ZERO, **options: Any):
        self.width, self.dtype, self.initializer = width, _dtype_of(dtype), initializer
        if not 0 < width <= _MAX_WIDTH:
            raise InputError('width: %r columns: give an integer from 1 to %d' % (width, _MAX_WIDTH))
        checked = RowStoreOptions(**options)
        checked.check()
        check_row_dtype('', self.dtype, checked.row_dtype)
        self._library = library.load()
        self._handle = self._library.row_store_new(self._library.dtypes[self.dtype.name], width,
                                                   *initializer.for_library(), *checked.for_library())
        self._state_widths: Sequence[int] = ()

    @classmethod
    @contextmanager
    def borrowed(cls, address: int, width: int, dtype: Any, initializer: FirstValues, state_widths: Sequence[int]
                 ) -> Iterator['RowStore']:
        """Yield the store at an address, which its owner, an agent, frees."""
        store = cls.__new__(cls)
        store.width, store.dtype, store.initializer = width, _dtype_of(dtype), initializer
        store._library, store._handle, store._state_widths = library.load(), address, tuple(state_widths)
        try:
            yield store
        finally:
            store._handle = None

    @property
    def _store(self) -> Any:
        if self._handle is None:
            raise InputError('the rows of this table were freed by close(): make another store')
        return self._handle

    def __len__(self) -> int:
        return int(self._library.row_store_size(self._store))

    def set_state_widths(self, widths: Sequence[int]) -> None:
        """Set the number of elements a row of each array of optimizer state, at most two; they become zeros."""
        sizes = [width * self.dtype.itemsize for width in widths] + [0, 0]
        self._library.row_store_set_state_bytes(self._store, sizes[0], sizes[1])
        self._state_widths = tuple(widths)

    def set_updates(self, count: int) -> None:
        """Set the number of updates by an optimizer so far."""
        self._library.row_store_set_updates(self._store, count)

    def read(self, keys: Any) -> np.ndarray:
        """Return the rows of keys, of shape (number of keys, width).  Reading makes no rows."""
        keys = as_keys(keys)
        rows = np.empty((len(keys), self.width), self.dtype)
        self._library.row_store_read(self._store, keys.ctypes.data, len(keys), rows.ctypes.data)
        return rows

    def update(self, rule: str, settings: Mapping[str, float], keys: Any, gradients: Any, slot: int = 0) -> int:
        """Apply a rule of ``kernels/update.cc`` to the rows of sorted, unique keys; return the number of changed rows.

        `slot` is the number of the array of optimizer state of the rule 'assign state'.
        """
        keys, gradients = as_keys(keys), self._rows(gradients, len(as_keys(keys)), self.width)
        return int(self._library.row_store_update(self._store, self._library.rules[rule], slot,
                                                  self._library.rule_settings(settings), keys.ctypes.data,
                                                  gradients.ctypes.data, len(keys)))

    def assign(self, keys: Any, rows: Any) -> None:
        """Set the rows of keys; keys without a row get one."""
        keys, rows = as_keys(keys), self._rows(rows, len(as_keys(keys)), self.width)
        self._library.row_store_assign(self._store, keys.ctypes.data, rows.ctypes.data, len(keys))

    def read_state(self, slot: int, keys: Any) -> np.ndarray:
        """Return optimizer state number `slot` of keys; zeros for keys without a row."""
        keys = as_keys(keys)
        states = np.empty((len(keys), self._state_width(slot)), self.dtype)
        self._library.row_store_read_state(self._store, slot, keys.ctypes.data, len(keys), states.ctypes.data)
        return states

    def assign_state(self, slot: int, keys: Any, states: Any) -> None:
        """Set optimizer state number `slot` of keys; keys without a row get one."""
        keys, states = as_keys(keys), self._rows(states, len(as_keys(keys)), self._state_width(slot))
        self._library.row_store_assign_state(self._store, slot, keys.ctypes.data, states.ctypes.data, len(keys))

    def erase(self, keys: Any) -> int:
        """Remove the rows of keys; return how many had one."""
        keys = as_keys(keys)
        return int(self._library.row_store_erase(self._store, keys.ctypes.data, len(keys)))

    def clear(self) -> None:
        """Remove all rows."""
        self._library.row_store_clear(self._store)

    def statistics(self) -> Dict[str, int]:
        """Return the numbers of ``struct RowStoreStatistics`` by name."""
        numbers = (ctypes.c_uint64 * len(_STATISTICS))()
        self._library.row_store_statistics(self._store, numbers)
        return dict(zip(_STATISTICS, numbers))

    def set_clock(self, clock: int) -> None:
        """Set the number of updates by an optimizer since the table was empty, from which the age of rows is counted,
        before rows that were saved are loaded.
        """
        self._library.row_store_set_clock(self._store, clock)

    def save(self, folder: Union[str, row_files.Folder], since: Optional[int] = None) -> Dict[str, Any]:
        """Write the rows into a folder, which is made, and return when they are on the disk.

        - `folder`: its path, or an object that makes the files; :mod:`mxhybrid.row_store.row_files` describes them.
        - `since`: the 'mark' of an earlier save: write only rows that changed since then, and the keys of rows that
          were removed.  All rows are written if the changes are not known any more: after two further saves, a `clear`,
          new widths of optimizer state, or the removal of more rows than 2^20 and a quarter of the table.

        Returns
        -------
        dict
            'rows' and 'removed': numbers of rows and of removed keys; 'whole': whether all rows were written;
            'bytes' of all files, and 'files': by name, without '.npy', the record of each, with its digest, see
            :mod:`mxhybrid.base.file_digest`; 'mark': the `since` of a later save; 'clock': that of the store.
        """
        if since is not None and not 0 <= since < 1 << 32:
            raise InputError("since: %r: give the 'mark' of an earlier save" % (since,))
        if isinstance(folder, str):
            folder = row_files.Folder(folder)
        return row_files.save_rows(self._library, self._store, folder, self._columns(), since)

    def knows_changes(self, since: int) -> bool:
        """Return whether a save `since` a mark would write changes only, see :meth:`save`."""
        return bool(self._library.row_store_knows_changes(self._store, since))

    def mark(self) -> None:
        """Note that the rows of this time are saved, from a copy of this process's memory."""
        self._library.row_store_mark(self._store)

    def load(self, path: str, partition: int = 0, partitions: int = 1) -> int:
        """Add rows from a folder that :meth:`save` wrote, and return their number.

        Keys that the folder lists as removed lose their rows first, so load a whole save and then its deltas.  With
        `partitions`, only keys of the partition with number `partition` are loaded.  Rows of the folder overwrite those
        of the store; the clock grows to that of the rows.

        Raises
        ------
        CheckpointError
            The folder lacks files or has rows of another width, type or optimizer.
        """
        return row_files.load_rows(self._library, self._store, path, self._columns(), partition, partitions)

    def load_waiting(self, path: str, partition: int = 0, partitions: int = 1) -> None:
        """Add the keys of a partition that wait for admission, from a folder that :meth:`save` wrote, if it has any.

        Call :meth:`clear` first, and then this method with the folders of all parts of the newest save.
        """
        row_files.load_waiting(self._library, self._store, path, partition, partitions)

    def _columns(self) -> List[Tuple[str, Any, Tuple[int, ...]]]:
        """Return the columns of saved rows: name, dtype, shape without the rows."""
        row_dtype = row_files.ROW_DTYPES[self._library.row_store_row_type(self._store)]
        rows_dtype = row_files.kept_dtype(self.dtype, row_dtype)
        columns: List[Tuple[str, Any, Tuple[int, ...]]] = [('keys', np.int64, ()), ('rows', rows_dtype, (self.width,))]
        columns += [('state%d' % slot, self.dtype, (width,)) for slot, width in enumerate(self._state_widths)]
        ages = self._library.row_store_ages(self._store)
        return columns + [(name, np.uint32, ()) for name in ('used', 'counts')[:ages]]

    def close(self) -> None:
        """Free the rows; the store cannot be used any more, except that this may be called again."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._library.row_store_close(handle)

    def __del__(self) -> None:
        if getattr(self, '_handle', None) is not None:
            self.close()

    def _state_width(self, slot: int) -> int:
        if not 0 <= slot < len(self._state_widths):
            raise InputError('optimizer state number %r: the table has %d arrays of state' %
                             (slot, len(self._state_widths)))
        return self._state_widths[slot]

    def _rows(self, rows: Any, count: int, width: int) -> np.ndarray:
        rows = np.ascontiguousarray(rows, self.dtype)
        if rows.shape != (count, width):
            raise InputError('rows of shape %s for %d keys: give rows of shape %s' %
                             (rows.shape, count, (count, width)))
        return rows


def _dtype_of(dtype: Any) -> np.dtype:
    """Return the type of the elements of a dynamic table; raise InputError if it cannot have this type."""
    kind = np.dtype(dtype)
    if kind.name not in DTYPES:
        raise InputError('a dynamic table of type %s: give one of %s; its optimizers have kernels for these types '
                         "only. Rows may travel as float16 nevertheless, see the setting 'wire_dtype'"
                         % (kind.name, ', '.join(DTYPES)))
    return kind
