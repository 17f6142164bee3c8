"""Opens a checkpoint to read its tables, for evaluation and serving: mapped, and without MXNet."""
import contextlib
import math
import os
import time
from typing import Any, ContextManager, Dict, Iterator, List, Mapping, Optional, Tuple, Union

import numpy as np

from ..base.errors import CheckpointError, InputError
from ..base.log import get_logger
from ..row_store.row_files import narrowed, widened
from . import folder, layers, tensor_files
from .npy_files import FormatError
from .philox import fill_first_values
from .reader import Damaged, Reader, shard_file, shard_key
from .table_files import Part, TableDescription

logger = get_logger(__name__)

_WEIGHT = '/weight'
#: Seconds between two attempts to lock a checkpoint that another process removes.
_RETRY_S = 0.01
#: ``RowStore::kDefaultKey``.
DEFAULT_KEY = np.iinfo(np.int64).min


class ReadOnlyTable:
    """A dynamic table of a checkpoint and of the deltas that the checkpoint consists of.

    Attributes
    ----------
    name : str
    width : int
    dtype : numpy.dtype
    """

    def __init__(self, name: str, description: TableDescription, table_layers: List[List[Part]], locks: Any = None):
        self.name, self.width, self.dtype = name, description.width, np.dtype(description.dtype)
        self.description, self.layers = description, table_layers
        self._locks = locks  # writers do not remove the files as long as the table is in use

    def rows(self, keys: Any) -> np.ndarray:
        """Return the rows of some keys.

        Parameters
        ----------
        keys : array_like of integers, of any shape
            Row numbers, or keys of a HashEmbedding.

        Returns
        -------
        numpy.ndarray, shape ``keys.shape + (width,)``
            A key without a row has its first values, as in training: those of the key, or the default row of a table
            that admits keys only after some sightings.

        Raises
        ------
        InputError
            Keys are not integers, or are no rows of the table.
        """
        keys = _integers(self.name, keys, self.description.rows)
        result, has_row = self._find(keys.reshape(-1))
        if not has_row.all():
            without_row = keys.reshape(-1)[~has_row]
            if self.description.options.get('admit', 1) > 1:
                without_row[:] = DEFAULT_KEY
            first = np.empty((len(without_row), self.width), self.dtype)
            fill_first_values(self.description.first_values, without_row, first)
            result[~has_row] = widened(narrowed(first, self.description.kept_dtype), self.dtype)
        return result.reshape(keys.shape + (self.width,))

    def _find(self, keys: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """Return the rows of keys, and a mask of the keys that have one."""
        order = np.argsort(keys)
        ordered = np.empty((len(keys), self.width), self.dtype)
        rows, has_row = np.empty_like(ordered), np.empty(len(keys), bool)
        has_row[order] = layers.find_rows(self.layers, keys[order], 'rows', ordered)
        rows[order] = ordered
        return rows, has_row

    def contains(self, keys: Any) -> np.ndarray:
        """Return a mask of the keys that have a row in the checkpoint."""
        keys = _integers(self.name, keys, self.description.rows)
        return self._find(keys.reshape(-1))[1].reshape(keys.shape)

    def pieces(self) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
        """Yield all stored rows in the order of their keys, in pieces: keys and rows."""
        for keys, columns in layers.merged(self.layers, self.description, ('rows',)):
            yield keys, widened(columns['rows'], self.dtype)

    def __len__(self) -> int:
        """Return the number of stored rows; it takes time if there are deltas."""
        if len(self.layers) == 1:
            return sum(len(part.keys) for part in self.layers[0])
        return sum(len(keys) for keys, _ in layers.merged(self.layers, self.description, ()))


class ReadOnlyArray:
    """An array of a checkpoint: a dense weight, or a table whose rows all exist.

    Attributes
    ----------
    name : str
    shape : tuple of int
    dtype : numpy.dtype
    """

    def __init__(self, name: str, reader: Reader, stored_name: str, locks: Any = None):
        entry = reader.content['arrays'][stored_name]
        self.name, self.shape, self.dtype = name, tuple(entry['shape']), np.dtype(entry['dtype'])
        self._reader, self._stored_name, self._pieces = reader, stored_name, entry['pieces']
        self._starts = np.array([first for _, first, _ in entry['pieces']], np.int64)
        self._maps: Dict[int, np.ndarray] = {}
        self._locks = locks  # as for tables

    def _piece(self, number: int) -> np.ndarray:
        if number not in self._maps:
            shard, first, last = self._pieces[number]
            path = os.path.join(self._reader.path, shard_file(shard))
            try:
                elements = tensor_files.tensors_of(path)[shard_key(self._stored_name, first)]
                if elements.shape != (last - first,) or elements.dtype != self.dtype:
                    raise FormatError('has other elements of %s than the manifest says' % self.name)
            except (FormatError, KeyError, OSError) as error:
                raise Damaged('%s: %s' % (path, error)) from error
            self._maps[number] = elements
        return self._maps[number]

    def rows(self, ids: Any) -> np.ndarray:
        """Return rows by their numbers, integers of any shape: an array of shape ``ids.shape + shape[1:]``."""
        ids = _integers(self.name, ids, self.shape[0] if self.shape else 0)
        width = math.prod(self.shape[1:])
        elements = (ids.reshape(-1, 1) * width + np.arange(width)).reshape(-1)
        result = np.empty(len(elements), self.dtype)
        numbers = np.searchsorted(self._starts, elements, 'right') - 1
        for number in np.unique(numbers):
            here = numbers == number
            result[here] = self._piece(number)[elements[here] - self._starts[number]]
        return result.reshape(ids.shape + self.shape[1:])

    def _elements(self, start: int, stop: int) -> np.ndarray:
        """Return a copy of elements, counted in C order."""
        result = np.empty(stop - start, self.dtype)
        for number, (_, first, last) in enumerate(self._pieces):
            low, high = max(start, first), min(stop, last)
            if low < high:
                result[low - start:high - start] = self._piece(number)[low - first:high - first]
        return result

    def numpy(self) -> np.ndarray:
        """Return the whole array."""
        return self._elements(0, math.prod(self.shape)).reshape(self.shape)

    def pieces(self) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
        """Yield the numbers of all rows and the rows, with one dimension each, in pieces."""
        rows, width = (self.shape or (1,))[0], math.prod(self.shape[1:])
        step = max(1, layers.MERGED_BYTES // max(1, width * self.dtype.itemsize))
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            elements = self._elements(start * width, stop * width)
            yield np.arange(start, stop), elements.reshape(stop - start, width)


def _integers(name: str, values: Any, rows: Optional[int]) -> np.ndarray:
    values = np.asarray(values)
    if values.dtype.kind not in 'iu' and values.size:
        raise InputError('%s: keys of dtype %s: give integers' % (name, values.dtype))
    if values.dtype.kind == 'u' and values.size and int(values.max()) >= 1 << 63:
        raise InputError('%s: key %d is too large: give signed 64-bit integers' % (name, values.max()))
    keys = values.astype(np.int64)
    if rows is not None and keys.size and (keys.min() < 0 or keys.max() >= rows):
        wrong = keys[(keys < 0) | (keys >= rows)].reshape(-1)[0]
        raise InputError('%s: %d is not a row: give row ids from 0 to %d' % (name, wrong, rows - 1))
    return keys


class OpenCheckpoint(Mapping[str, Union[ReadOnlyTable, ReadOnlyArray]], ContextManager['OpenCheckpoint']):
    """The tables and arrays of a checkpoint by name, read-only.  A context manager; :meth:`close` ends it.

    A name is that of a parameter in the net, such as ``'users.weight'``; ``'users'`` is the same.

    Attributes
    ----------
    path : str
        The directory of the checkpoint.
    step : int
    extra : JSON value
        As :func:`mxhybrid.checkpoint.save` got them.
    chain : list of str
        The names of the checkpoint and of those that it builds on, from new to old.
    saved_at : float
        The time at which the checkpoint was written, in seconds since 1970.
    """

    def __init__(self, reader: Reader, bases: List[Reader], locks: contextlib.ExitStack):
        self.path, self.step, self.extra = reader.path, reader.content['step'], reader.content.get('extra')
        self.saved_at = reader.content['saved_at']
        self.chain = [os.path.basename(one.path) for one in [reader] + bases]
        self._locks = locks
        self._values: Dict[str, Union[ReadOnlyTable, ReadOnlyArray]] = {}
        for name in reader.content['arrays']:
            if name.endswith(_WEIGHT):
                short = name[:-len(_WEIGHT)]
                self._values[short] = ReadOnlyArray(short, reader, name, locks)
        for name, entry in reader.tables.items():
            self._values[name] = ReadOnlyTable(name, TableDescription.from_json(entry), reader.layers(name, bases),
                                               locks)

    def __getitem__(self, name: str) -> Any:
        for candidate in (name, '%s.weight' % name):
            if candidate in self._values:
                return self._values[candidate]
        raise KeyError('%s has no %r, but %s' % (self.path, name, ', '.join(sorted(self._values)) or 'nothing'))

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def close(self) -> None:
        """Let writers remove the checkpoint when it is old."""
        self._locks.close()

    def __exit__(self, *exception: Any) -> None:
        self.close()


def open_checkpoint(directory: Any, *, verify: bool = False) -> OpenCheckpoint:
    """Open the newest checkpoint of a directory to read its tables; it needs NumPy and xxhash, but no MXNet and no job.

    ::

        with mxhybrid.checkpoint.open('checkpoints') as tables:
            rows = tables['users'].rows(keys)           # keys.shape + (width,)
            weight = tables['output.weight'].numpy()    # a dense weight

    Files are mapped, and only what is asked for is read.  The checkpoint is not removed before it is closed.

    Parameters
    ----------
    directory : str or path
        The directory that :func:`save` writes to, or that of one checkpoint.
    verify : bool
        Whether to read all files first and compare their digests.

    Raises
    ------
    CheckpointError
        There is no checkpoint, or none that is whole.
    """
    directory, only = os.path.abspath(os.fspath(directory)), ''
    if folder.NAME.fullmatch(os.path.basename(directory)):
        directory, only = os.path.split(directory)
    # The lock of the directory, which a writer may have for long, is not needed: names are read again if a writer has
    # removed or compacted a checkpoint meanwhile.
    deadline = time.monotonic() + folder.LOCK_TIMEOUT_S
    while True:
        names = folder.names(directory)
        chosen = [name for name in names if only in ('', name)]
        if not chosen:
            raise CheckpointError('%s has no checkpoint%s: give the directory to which a job saves'
                                  % (directory, only and ' ' + only))
        problems: List[str] = []
        for name in chosen:
            locks, is_usable = contextlib.ExitStack(), True
            try:
                is_usable = locks.enter_context(folder.shared(os.path.join(directory, name)))
                if not is_usable:  # for an instant
                    time.sleep(_RETRY_S)
                    raise Damaged('another process holds a lock of %s' % os.path.join(directory, name))
                # Its bases stay with it.
                reader = Reader(os.path.join(directory, name))
                bases = reader.bases()
                if verify:
                    reader.verify()
                return OpenCheckpoint(reader, bases, locks)
            except Damaged as problem:
                locks.close()
                if (not is_usable or folder.names(directory) != names) and time.monotonic() < deadline:
                    break
                problems.append(str(problem))
                logger.warning('damaged checkpoint: %s; trying the one before', problem)
        else:
            raise CheckpointError('no checkpoint in %s is whole: %s. Save again, or read a copy'
                                  % (directory, '; '.join(problems)))
