"""Rows of a row store in a folder of files, in NumPy's .npy format and in the order of their keys.

``keys.npy`` has the keys, int64, sorted; ``rows.npy`` the rows, in the type in which the store keeps them, of which
bfloat16 are the bits as uint16; ``state0.npy`` and ``state1.npy`` have the optimizer state;
``used.npy`` the clock of the store at the last update of each row, and ``counts.npy`` the number of its updates,
uint32, if the store needs them to remove rows.  A delta has the rows that changed after an earlier save, and
``removed.npy`` the keys of rows that were removed after it.

If the table has `admit`, ``waiting.npy`` has the keys that wait for admission, int64 and in any order, and
``sightings.npy`` their numbers of ``src/store/waiting_keys.h``, uint16.  A delta has all of them, too.

Memory is bounded by the portion: a thread writes portions, and computes the digests of the files, while the next one is
collected.  The disk starts to write a portion at once, so that little is left for the end.
"""
import ctypes
import io
import itertools
import os
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..base.errors import CheckpointError
from ..base.file_digest import FileDigest
from ..base.files import sync_directory
from ..kernels.library import memory_view

#: The most rows of a portion, and its bytes, unless that is less than a row.  Large portions would need more time for
#: new pages of memory.
_PORTION_ROWS, _PORTION_BYTES = 1 << 20, 4 << 20
#: A table with more portions than this gets larger ones, up to eight times as large: each histogram of
#: ``src/store/row_scan.cc`` divides keys into 4,096 ranges at most.
_PORTIONS = 1024
#: Memory of a save besides portions: the slots of at most this number of rows, ``src/store/row_scan.cc``, with 4 bytes
#: each, 32 bytes to sort each row of a portion, and threads.
_GATHERED_ROWS, _SLOT_BYTES, _ENTRY_BYTES, _THREADS_BYTES = 1 << 22, 4, 32, 2 << 20
#: The directory that has /proc and /sys.
_ROOT = '/'
#: The files of keys that wait for admission: name and type.
WAITING_FILES: Tuple[Tuple[str, Any], ...] = (('waiting', np.int64), ('sightings', np.uint16))
#: The most portions that are written while another one is collected.
_WAITING_PORTIONS = 2
#: The columns that ``lane_row_scan_read`` gives, by their number there.
_COLUMNS = ('keys', 'rows', 'state0', 'state1', 'used', 'counts')
#: The slots of what pushes may overwrite beside rows and optimizer state, see ``RowStore::kFirstAge``: the columns by
#: which rows are chosen for removal, and the keys that wait for admission.
MORE_SLOTS = {'used': 2, 'counts': 3, 'waiting': 4}
#: The types in which rows of float32 are kept, by the numbers of ``src/store/row_type.h``; '' is float32.
ROW_DTYPES = ('', 'float16', 'bfloat16')
#: The types of the rows of float32 tables in files.
_KEPT_DTYPES = (np.float32, np.float16, np.uint16)
#: The marks of the saves of a table's partitions by the number of the partition, as text.
Marks = Dict[str, int]


def kept_dtype(dtype: Any, row_dtype: str) -> np.dtype:
    """Return the type of the rows of a table in memory and files: uint16 for the bits of bfloat16."""
    return np.dtype({'': dtype, 'float16': np.float16, 'bfloat16': np.uint16}[row_dtype])


def widened(rows: np.ndarray, dtype: Any) -> np.ndarray:
    """Return kept rows as those of a table."""
    if rows.dtype == np.uint16:
        rows = (rows.astype(np.uint32) << 16).view(np.float32)
    return rows.astype(dtype, copy=False)


def narrowed(rows: np.ndarray, dtype: Any) -> np.ndarray:
    """Return rows of a table in the type of kept ones, rounded to nearest, ties to even."""
    if dtype != np.uint16:
        with np.errstate(over='ignore'):
            return rows.astype(dtype, copy=False)
    bits = np.ascontiguousarray(rows, np.float32).view(np.uint32)
    return np.where(np.isnan(rows), bits >> 16 | 0x40, (bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16)


class Folder:
    """A folder for the files of a save, which is made; `remedy` is for errors about it."""

    remedy = 'Free space there, or save into another directory'

    def __init__(self, path: str):
        self.path = path

    def make(self) -> None:
        """Make the folder."""
        os.makedirs(self.path, exist_ok=True)

    def new_file(self, name: str) -> Any:
        """Return a new file for bytes, without a buffer."""
        return open(os.path.join(self.path, name), 'wb', 0)

    def sync(self) -> None:
        """Flush the names of the files to the disk."""
        sync_directory(self.path)


class _Output:
    """A .npy file of known shape, which is written in portions."""

    def __init__(self, library: Any, folder: Folder, name: str, dtype: Any, shape: Tuple[int, ...]):
        self.name = name
        self._library, self._file, self._digest = library, folder.new_file(name + '.npy'), FileDigest()
        fields = {'descr': np.lib.format.dtype_to_descr(np.dtype(dtype)), 'fortran_order': False, 'shape': shape}
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, fields)
        self._write(header.getbuffer())

    def _write(self, view: memoryview) -> None:
        self._digest.update(view)
        first = self._file.tell()
        while len(view):
            view = view[self._file.write(view):]
        self._library.start_write_back(self._file.fileno(), first, self._file.tell() - first)

    def write(self, values: np.ndarray) -> None:
        self._write(values.reshape(-1).view(np.uint8).data)

    def finish(self) -> Dict[str, Any]:
        os.fsync(self._file.fileno())
        self._file.close()
        return self._digest.record()


def save_rows(library: Any, store: Any, folder: Folder, columns: Sequence[Tuple[str, Any, Tuple[int, ...]]],
              since: Optional[int]) -> Dict[str, Any]:
    """Write files of the rows of a store; `columns` has name, dtype, and shape without the rows; see RowStore.save."""
    is_delta = since is not None and bool(library.row_store_knows_changes(store, since))
    row_bytes = sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for _, dtype, shape in columns)
    portion_rows = _portion_rows(row_bytes, int(library.row_store_size(store)))
    scan = library.row_scan_new(store, since if is_delta else -1, portion_rows)
    outputs: List[_Output] = []
    try:
        rows = int(library.row_scan_count(scan))
        _check_memory(library, rows, portion_rows, row_bytes)
        folder.make()
        outputs += [_Output(library, folder, name, dtype, (rows,) + shape) for name, dtype, shape in columns]
        buffers = itertools.cycle([[np.empty((min(rows, portion_rows),) + shape, dtype) for _, dtype, shape in columns]
                                   for _ in range(_WAITING_PORTIONS + 1)])
        writes: List['Future[None]'] = []
        with ThreadPoolExecutor(1) as thread:
            while True:
                count = library.row_scan_next(scan)
                if not count:
                    break
                portion = [values[:count] for values in next(buffers)]
                addresses = {name: values.ctypes.data for (name, _, _), values in zip(columns, portion)}
                library.row_scan_read(scan, (ctypes.c_void_p * len(_COLUMNS))(*map(addresses.get, _COLUMNS)))
                writes.append(thread.submit(_write, outputs, portion))
                if len(writes) > _WAITING_PORTIONS:
                    writes.pop(0).result()
            for write in writes:
                write.result()
        removed = _removed(library, store, since) if is_delta and since is not None else np.empty(0, np.int64)
        if is_delta:
            outputs.append(_Output(library, folder, 'removed', np.int64, removed.shape))
            outputs[-1].write(removed)
        for (name, dtype), values in zip(WAITING_FILES, _waiting(library, store)):
            outputs.append(_Output(library, folder, name, dtype, values.shape))
            outputs[-1].write(values)
        with ThreadPoolExecutor(len(outputs)) as finishing:
            files = dict(zip([output.name for output in outputs], finishing.map(_Output.finish, outputs)))
        folder.sync()
    except OSError as error:
        raise CheckpointError('cannot write rows of a dynamic table into %s: %s. %s'
                              % (folder.path, error.strerror or error, folder.remedy)) from error
    finally:
        library.row_scan_close(scan)
    return {'rows': rows, 'removed': len(removed), 'whole': not is_delta, 'files': files,
            'bytes': sum(record['bytes'] for record in files.values()), 'mark': int(library.row_store_mark(store)),
            'clock': int(library.row_store_clock(store))}


def remove_parts(directory: str) -> None:
    """Remove the folders that partitions of a table have written into a directory."""
    for name in os.listdir(directory):
        shutil.rmtree(os.path.join(directory, name))


def _portion_rows(row_bytes: int, rows: int) -> int:
    """Return the most rows of a portion of a table with this number of rows."""
    portion_bytes = min(max(_PORTION_BYTES, rows * row_bytes // _PORTIONS), 8 * _PORTION_BYTES)
    return max(1, min(_PORTION_ROWS, portion_bytes // row_bytes))


def _check_memory(library: Any, rows: int, portion_rows: int, row_bytes: int) -> None:
    """Raise CheckpointError if the system might end this process, rather than give it memory for a save.

    Another server of the same container may save at the same time and need as much.
    """
    left_and_limit = (ctypes.c_uint64 * 2)()
    library.available_memory(_ROOT.encode(), left_and_limit)
    left_bytes, limit_bytes = left_and_limit
    portion_bytes = min(rows, portion_rows) * ((_WAITING_PORTIONS + 1) * row_bytes + _ENTRY_BYTES)
    needed_bytes = portion_bytes + min(rows, _GATHERED_ROWS) * _SLOT_BYTES + _THREADS_BYTES
    if 2 * needed_bytes > left_bytes:
        raise CheckpointError('cannot save rows of a dynamic table: this takes %d bytes of memory, and as much in '
                              'another server, but %d are left of the %d of this machine or container. Give it more '
                              'memory, or use more servers on other hosts' % (needed_bytes, left_bytes, limit_bytes))


def _write(outputs: Sequence[_Output], portion: Sequence[np.ndarray]) -> None:
    for output, values in zip(outputs, portion):
        output.write(values)


def _waiting(library: Any, store: Any) -> List[np.ndarray]:
    """Return the contents of WAITING_FILES, in the memory of the store; none if keys need not be admitted."""
    addresses = (ctypes.c_void_p * len(WAITING_FILES))()
    count = int(library.row_store_waiting(store, addresses))
    if count < 0:
        return []
    return [memory_view(address, (count,), dtype) for (_, dtype), address in zip(WAITING_FILES, addresses)]


def load_waiting(library: Any, store: Any, path: str, partition: int, partitions: int) -> None:
    """Add the keys of a folder that wait for admission, if it has any and the store admits keys; see RowStore.load."""
    if not _waiting(library, store) or not os.path.exists(os.path.join(path, WAITING_FILES[0][0] + '.npy')):
        return
    keys, numbers = (_mapped(path, name, dtype, ()) for name, dtype in WAITING_FILES)
    for first in range(0, len(keys), _PORTION_ROWS):
        portion = slice(first, first + _PORTION_ROWS)
        own = partition_numbers(library, keys[portion], partitions) == partition
        own_keys, own_numbers = keys[portion][own], numbers[portion][own]
        library.row_store_restore_waiting(store, own_keys.ctypes.data, own_numbers.ctypes.data, len(own_keys))


def partition_numbers(library: Any, keys: np.ndarray, partitions: int) -> np.ndarray:
    """Return the partition of each key: its hash modulo the number of partitions, uint32."""
    numbers = np.empty(len(keys), np.uint32)
    library.partitions_of(keys.ctypes.data, len(keys), partitions, numbers.ctypes.data)
    return numbers


def _removed(library: Any, store: Any, since: int) -> np.ndarray:
    count = library.row_store_removed(store, since, None, 0)
    keys = np.empty(count, np.int64)
    library.row_store_removed(store, since, keys.ctypes.data, count)
    return keys


def load_rows(library: Any, store: Any, path: str, columns: Sequence[Tuple[str, Any, Tuple[int, ...]]], partition: int,
              partitions: int) -> int:
    """Add the rows of a folder to a store; return their number; see RowStore.load."""
    files = {name: _mapped(path, name, dtype, shape) for name, dtype, shape in columns
             if name not in ('used', 'counts') or os.path.exists(os.path.join(path, name + '.npy'))}
    if len({len(values) for values in files.values()}) > 1:
        raise CheckpointError('files in %s have different numbers of rows: %s: they are damaged, so load another '
                              'checkpoint' % (path, {name: len(values) for name, values in files.items()}))
    if os.path.exists(os.path.join(path, 'removed.npy')):
        removed = np.ascontiguousarray(_mapped(path, 'removed', np.int64, ()))
        library.row_store_erase(store, removed.ctypes.data, len(removed))
    row_dtype = {name: np.dtype(dtype) for name, dtype, _ in columns}['rows']
    row_bytes = sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for _, dtype, shape in columns)
    portion_rows, loaded = _portion_rows(row_bytes, len(files['keys'])), 0
    for first in range(0, len(files['keys']), portion_rows):
        portion = {name: np.ascontiguousarray(values[first:first + portion_rows]) for name, values in files.items()}
        if portion['rows'].dtype != row_dtype:  # the table had another type in memory
            portion['rows'] = narrowed(widened(portion['rows'], np.float32), row_dtype)
        if partitions > 1:
            own = partition_numbers(library, portion['keys'], partitions) == partition
            portion = {name: np.ascontiguousarray(values[own]) for name, values in portion.items()}
        library.row_store_restore(store, *[portion[name].ctypes.data if name in portion else None for name in _COLUMNS],
                                  len(portion['keys']))
        loaded += len(portion['keys'])
    return loaded


def _mapped(path: str, name: str, dtype: Any, shape: Tuple[int, ...]) -> np.ndarray:
    file = os.path.join(path, name + '.npy')
    try:
        # An empty file of an array cannot be mapped.
        array = np.load(file, mmap_mode='r' if os.path.getsize(file) > 256 else None, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise CheckpointError('cannot read rows of a dynamic table from %s: %s: load another checkpoint'
                              % (file, error)) from error
    is_kept = name == 'rows' and dtype != np.float64 and array.dtype in _KEPT_DTYPES
    if not is_kept and array.dtype != dtype or array.shape[1:] != shape:
        raise CheckpointError('%s has rows of %s of shape %s, but the table has rows of %s of shape %s: make a table '
                              'of the same width, type and optimizer' %
                              (file, array.dtype, array.shape[1:], np.dtype(dtype), shape))
    return array
