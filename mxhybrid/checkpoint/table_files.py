"""Dynamic tables in a checkpoint: the rows that exist, by key, in any number of parts.

::

    00000003-step-600/
        manifest.json
        table-00000/
            0/          a part: the rows of a partition, or of any other set of keys
                keys.npy, rows.npy, state0.npy and so on, see mxhybrid.row_store.row_files

No key is in two parts of a checkpoint.  In a delta, a table has the rows that changed since the checkpoint before, and
the manifest says so; the rest is read from that one, but keys that wait for admission only from the newest checkpoint.
A row that no file has is its first value, a function of seed and key, see :mod:`mxhybrid.checkpoint.philox`.
"""
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, ContextManager, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np

from ..base.file_digest import FileDigest, is_record
from ..base.files import sync_directory
from ..row_store.row_files import ROW_DTYPES, WAITING_FILES, kept_dtype
from . import npy_files
from .manifest import is_count
from .npy_files import ArrayWriter, FormatError

#: Bytes that are read at a time to compute a digest.
_DIGEST_BYTES = 1 << 20
#: The most files of a directory that are flushed at a time.
_SEALED_FILES = 8
#: Largest width of a row or of its state that a reader accepts.
_MAX_WIDTH = 1 << 24
_KEYS, _ROWS, _REMOVED = 'keys', 'rows', 'removed'
_KINDS = ('zero', 'constant', 'uniform', 'normal')


#: Dtype and width of columns by name; width is None for one number a row.
Columns = Dict[str, Tuple[Any, Optional[int]]]


class TableDescription(NamedTuple):
    """The properties of a dynamic table that its checkpoint must share with the net."""

    #: Elements of a row.
    width: int
    #: 'float32' or 'float64'.
    dtype: str
    #: The number of rows; None if any 64-bit key has a row.
    rows: Optional[int]
    #: {'kind': 'zero', 'constant', 'uniform' or 'normal', 'value': float, 'seed': int}
    first_values: Dict[str, Any]
    #: Options of the table: 'admit', 'capacity', 'expire_after', 'evict', 'row_dtype'.
    options: Dict[str, Any]
    #: Number of pushes so far.
    updates: int
    #: Elements of each array of optimizer state of a row.
    state_widths: List[int]
    #: The clock by which the ages of rows are counted, see ``row_store/src/store/row_store.h``.
    clock: int

    @property
    def kept_dtype(self) -> np.dtype:
        """The type of the rows in files."""
        return kept_dtype(self.dtype, self.options.get('row_dtype', ''))

    @classmethod
    def from_json(cls, value: Dict[str, Any]) -> 'TableDescription':
        """Return the description of an entry of a manifest."""
        return cls(**{field: value[field] for field in cls._fields})


class Part:
    """The rows of one part, mapped: `keys`, and by name the `columns`, which have a row for each key.

    `removed` has the keys that the part takes away from older checkpoints.
    """

    def __init__(self, path: str, entry: Dict[str, Any], description: TableDescription):
        self.path = path
        self.keys = _mapped(path, _KEYS, entry, np.int64, (entry['rows'],))
        self.removed = np.zeros(0, np.int64)
        if entry['removed']:
            self.removed = _mapped(path, _REMOVED, entry, np.int64, (entry['removed'],))
        self.columns = {name: _mapped(path, name, entry, dtype, (entry['rows'], width))
                        for name, (dtype, width) in columns_of(description).items()}
        for name in entry['files']:
            if name not in (_KEYS, _REMOVED, *self.columns, *dict(WAITING_FILES)):
                self.columns[name] = _mapped(path, name, entry, None, (entry['rows'],))


def _mapped(path: str, name: str, entry: Dict[str, Any], dtype: Any, shape: Tuple[Any, ...]) -> np.ndarray:
    file = os.path.join(path, name + '.npy')
    if name not in entry['files']:
        raise FormatError('%s is not in the manifest' % file)
    try:
        if os.path.getsize(file) != entry['files'][name]['bytes']:
            raise FormatError('has %d bytes, not the %d of the manifest'
                              % (os.path.getsize(file), entry['files'][name]['bytes']))
        array = npy_files.mapped(file)
    except FormatError as error:
        raise FormatError('%s %s' % (file, error)) from error
    if array.shape != shape or dtype is not None and array.dtype != dtype:
        raise FormatError('%s has an array of %s of shape %s, not of %s of shape %s'
                          % (file, array.dtype, array.shape, 'numbers' if dtype is None else np.dtype(dtype), shape))
    return array


class PartWriter(ContextManager['PartWriter']):
    """Writes a part whose number of rows is known only at the end; a context manager."""

    def __init__(self, path: str, columns: Columns):
        os.makedirs(path)
        self._keys = ArrayWriter(os.path.join(path, _KEYS + '.npy'), np.int64)
        self._columns = {name: ArrayWriter(os.path.join(path, name + '.npy'), dtype, width)
                         for name, (dtype, width) in columns.items()}

    def __exit__(self, *exception: Any) -> None:
        for writer in [self._keys, *self._columns.values()]:
            writer.__exit__(*exception)

    @property
    def rows(self) -> int:
        """The number of rows so far."""
        return self._keys.rows

    def append(self, keys: np.ndarray, columns: Dict[str, np.ndarray]) -> None:
        """Write further rows; the keys are sorted, and higher than those before."""
        self._keys.append(keys)
        for name, writer in self._columns.items():
            writer.append(columns[name])


def columns_of(description: TableDescription) -> Columns:
    """Return dtype and width of the columns that every part of a table has."""
    columns: Columns = {_ROWS: (description.kept_dtype, description.width)}
    for slot, width in enumerate(description.state_widths):
        columns['state%d' % slot] = np.dtype(description.dtype), width
    return columns


def table_directory(number: int) -> str:
    """Return the name of the directory of a table inside a checkpoint."""
    return 'table-%05d' % number


def seal(path: str) -> Dict[str, Any]:
    """Flush the files of a written part to the disk; return its entry in the manifest, with digests."""
    files = {name[:-len('.npy')]: record for name, record in sealed_files(path).items() if name.endswith('.npy')}
    return {'files': files, 'rows': len(npy_files.mapped(os.path.join(path, _KEYS + '.npy'))),
            'removed': len(npy_files.mapped(os.path.join(path, _REMOVED + '.npy'))) if _REMOVED in files else 0}


def sealed_files(path: str) -> Dict[str, Dict[str, Any]]:
    """Flush the files of a directory to the disk; return their records by name."""
    names = sorted(os.listdir(path))
    with ThreadPoolExecutor(max(1, min(len(names), _SEALED_FILES))) as threads:  # digests, reads and fsync release
        sealed = dict(zip(names, threads.map(lambda name: _sealed(os.path.join(path, name)), names)))  # Python's lock
    sync_directory(path)
    return sealed


def _sealed(path: str) -> Dict[str, Any]:
    with ThreadPoolExecutor(1) as thread:
        with open(path, 'rb') as file:
            flushed = thread.submit(os.fsync, file.fileno())
            record = _record(path)
            flushed.result()
    return record


def _record(path: str) -> Dict[str, Any]:
    """Read a file; return its record."""
    digest = FileDigest()
    piece = memoryview(bytearray(_DIGEST_BYTES))
    with open(path, 'rb', 0) as file:
        while True:
            count = file.readinto(piece)
            if not count:
                return digest.record()
            digest.update(piece[:count])


def parts_of(path: str, entry: Dict[str, Any]) -> Iterator[Tuple[str, Dict[str, Any]]]:
    """Yield path and entry of each part of a table; `path` is the checkpoint's."""
    for number, part in enumerate(entry['parts']):
        yield os.path.join(path, entry['directory'], str(number)), part


def verify(path: str, tables: Dict[str, Any]) -> None:
    """Read all files of all tables and compare the digests; FormatError, with the path of the file, if they differ."""
    for entry in tables.values():
        for part_path, part in parts_of(path, entry):
            for name, record in part['files'].items():
                file = os.path.join(part_path, name + '.npy')
                if _record(file) != record:
                    raise FormatError('%s does not match its digest' % file)
            Part(part_path, part, TableDescription.from_json(entry))


def flaw_of_tables(tables: Any) -> str:
    """Return the error in the entries of a manifest for dynamic tables, '' if there is none."""
    if not isinstance(tables, dict):
        return 'lists no dynamic tables'
    for number, (name, entry) in enumerate(tables.items()):
        if not (isinstance(entry, dict) and _fits(entry, _FIELDS)
                and all(1 <= width <= _MAX_WIDTH for width in entry['state_widths'])
                and _fits(entry['first_values'], _FIRST_VALUES)
                and all(isinstance(part, dict) and _fits(part, _PART) for part in entry['parts'])):
            return 'has a wrong entry for %r' % name
        if entry['directory'] != table_directory(number):
            return 'has files of %r in %r' % (name, entry['directory'])
        for part in entry['parts']:
            if not all(file.isidentifier() and is_record(record) for file, record in part['files'].items()):
                return 'has a wrong entry for a part of %r' % name
    return ''


_FIELDS: Dict[str, Callable[[Any], bool]] = {
    'width': lambda value: is_count(value) and 1 <= value <= _MAX_WIDTH,
    'dtype': lambda value: value in ('float32', 'float64'),
    'rows': lambda value: value is None or is_count(value),
    'first_values': lambda value: isinstance(value, dict),
    'options': lambda value: isinstance(value, dict) and value.get('row_dtype', '') in ROW_DTYPES,
    'updates': is_count,
    'clock': lambda value: is_count(value) and value < 1 << 32,
    'state_widths': lambda value: isinstance(value, list) and all(map(is_count, value)),
    'directory': lambda value: isinstance(value, str),
    'delta': lambda value: isinstance(value, bool),
    'parts': lambda value: isinstance(value, list)}
_FIRST_VALUES: Dict[str, Callable[[Any], bool]] = {
    'kind': lambda value: value in _KINDS,
    'value': lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    'seed': lambda value: is_count(value) and value < 1 << 64}
_PART: Dict[str, Callable[[Any], bool]] = {'rows': is_count, 'removed': is_count,
                                           'files': lambda value: isinstance(value, dict)}


def _fits(value: Dict[str, Any], fields: Dict[str, Callable[[Any], bool]]) -> bool:
    return all(name in value and is_valid(value[name]) for name, is_valid in fields.items())
