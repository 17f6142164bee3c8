"""Opens a checkpoint to read its tables, for evaluation and serving: mapped, and without MXNet."""
import contextlib
import os
from types import TracebackType
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple, Type, Union

import numpy as np

from ..base.errors import CheckpointError, InputError
from ..base.log import get_logger
from . import folder, layers, tensor_files
from .npy_files import FormatError
from .philox import fill_first_values
from .reader import Damaged, Reader, shard_file, shard_key
from .table_files import Part, TableDescription

logger = get_logger(__name__)

_WEIGHT = '/weight'
#: ``RowStore::kDefaultKey``.
_DEFAULT_KEY = np.iinfo(np.int64).min


class ReadOnlyTable:
    """A dynamic table of a checkpoint and of the deltas that the checkpoint consists of.

    Attributes
    ----------
    name : str
    width : int
    dtype : numpy.dtype
    """

    def __init__(self, name: str, description: TableDescription, table_layers: List[List[Part]]):
        self.name, self.width, self.dtype = name, description.width, np.dtype(description.dtype)
        self._description, self._layers = description, table_layers

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
        keys = _integers(self.name, keys, self._description.rows)
        unique, inverse = np.unique(keys, return_inverse=True)
        result = np.empty((len(unique), self.width), self.dtype)
        missing = ~layers.find_rows(self._layers, unique, 'rows', result)
        if missing.any():
            first = np.empty((int(missing.sum()), self.width), self.dtype)
            fill_first_values(self._description.first_values, self._as_read(unique[missing]), first)
            result[missing] = first
        return result[inverse.reshape(-1)].reshape(keys.shape + (self.width,))

    def _as_read(self, keys: np.ndarray) -> np.ndarray:
        """Return the keys whose first values keys without a row have: in a table that admits keys, the default key."""
        return np.full_like(keys, _DEFAULT_KEY) if self._description.options.get('admit', 1) > 1 else keys

    def contains(self, keys: Any) -> np.ndarray:
        """Return a mask of the keys that have a row in the checkpoint."""
        keys = _integers(self.name, keys, self._description.rows)
        unique, inverse = np.unique(keys, return_inverse=True)
        has_row = layers.find_rows(self._layers, unique, 'rows', np.empty((len(unique), self.width), self.dtype))
        return has_row[inverse.reshape(-1)].reshape(keys.shape)

    def pieces(self) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
        """Yield all stored rows in the order of their keys, in pieces: keys and rows."""
        for keys, columns in layers.merged(self._layers, self._description):
            yield keys, columns['rows']

    def __len__(self) -> int:
        """Return the number of stored rows; it takes time if there are deltas."""
        if len(self._layers) == 1:
            return sum(len(part.keys) for part in self._layers[0])
        return sum(len(keys) for keys, _ in self.pieces())


class ReadOnlyArray:
    """An array of a checkpoint: a dense weight, or a table whose rows all exist.

    Attributes
    ----------
    name : str
    shape : tuple of int
    dtype : numpy.dtype
    """

    def __init__(self, name: str, reader: Reader, stored_name: str):
        entry = reader.content['arrays'][stored_name]
        self.name, self.shape, self.dtype = name, tuple(entry['shape']), np.dtype(entry['dtype'])
        self._reader, self._stored_name, self._pieces = reader, stored_name, entry['pieces']
        self._starts = np.array([first for _, first, _ in entry['pieces']], np.int64)
        self._maps: Dict[int, np.ndarray] = {}

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
        width = int(np.prod(self.shape[1:]))
        elements = (ids.reshape(-1, 1) * width + np.arange(width)).reshape(-1)
        result = np.empty(len(elements), self.dtype)
        numbers = np.searchsorted(self._starts, elements, 'right') - 1
        for number in np.unique(numbers):
            here = numbers == number
            result[here] = self._piece(number)[elements[here] - self._starts[number]]
        return result.reshape(ids.shape + self.shape[1:])

    def numpy(self) -> np.ndarray:
        """Return the whole array."""
        parts = [self._piece(number) for number in range(len(self._pieces))]
        flat = np.concatenate(parts) if parts else np.zeros(0, self.dtype)
        return flat.reshape(self.shape)


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


class OpenCheckpoint(Mapping[str, Union[ReadOnlyTable, ReadOnlyArray]]):
    """The tables and arrays of a checkpoint by name, read-only.  A context manager; :meth:`close` ends it.

    A name is that of a parameter in the net, such as ``'users.weight'``; ``'users'`` is the same.

    Attributes
    ----------
    path : str
        The directory of the checkpoint.
    step : int
    extra : JSON value
        As :func:`mxhybrid.checkpoint.save` got them.
    """

    def __init__(self, reader: Reader, bases: List[Reader], locks: contextlib.ExitStack):
        self.path, self.step, self.extra = reader.path, reader.content['step'], reader.content.get('extra')
        self._locks = locks
        self._values: Dict[str, Union[ReadOnlyTable, ReadOnlyArray]] = {}
        for name in reader.content['arrays']:
            if name.endswith(_WEIGHT):
                short = name[:-len(_WEIGHT)]
                self._values[short] = ReadOnlyArray(short, reader, name)
        for name, entry in reader.tables.items():
            self._values[name] = ReadOnlyTable(name, TableDescription.from_json(entry), reader.layers(name, bases))

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

    def __enter__(self) -> 'OpenCheckpoint':
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
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
    directory = os.path.abspath(os.fspath(directory))
    among: Optional[List[str]] = None
    if folder.NAME.fullmatch(os.path.basename(directory)):
        directory, name = os.path.split(directory)
        among = [name]
    problems = []
    if not folder.names(directory):
        raise CheckpointError('%s has no checkpoint: give the directory to which a job saves' % directory)
    with folder.kept(directory) as names:
        for name in names if among is None else among:
            locks = contextlib.ExitStack()
            try:
                locks.enter_context(folder.shared(os.path.join(directory, name)))  # its bases stay with it
                reader = Reader(os.path.join(directory, name))
                bases = reader.bases()
                if verify:
                    reader.verify()
                    for base in bases:
                        base.verify_tables()
                return OpenCheckpoint(reader, bases, locks)
            except Damaged as problem:
                locks.close()
                problems.append(str(problem))
                logger.warning('damaged checkpoint: %s; trying the one before', problem)
    raise CheckpointError('no checkpoint in %s is whole: %s. Save again, or read a copy'
                          % (directory, '; '.join(problems)))
