"""Imports rows from files of other programs into a dynamic table, in pieces."""
import os
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np

from ..base.errors import CheckpointError, InputError
from ..kvstore.table_parameter import TableParameter
from ..native.trainers import trainer_of
from . import npy_files, tensor_files
from .collect import PIECE_BYTES
from .npy_files import FormatError
from .workers import assign_rows, on_worker_0, start_training, workers_of


def import_rows(table: Any, keys: Any, rows: Any) -> int:
    """Set rows of a dynamic table from arrays or files (collective).

    ::

        mxhybrid.checkpoint.import_rows(net.items, None, 'items.npy')                       # rows 0, 1, 2, ...
        words = [mxhybrid.nn.hash_key(word) for word in open('words.txt').read().split()]
        mxhybrid.checkpoint.import_rows(net.words, words, ('vectors.safetensors', 'vectors'))

    Call it after the Trainer was made; optimizer state stays as it is, zeros for new rows.  Files are mapped and read
    in pieces, on worker 0 only.

    Parameters
    ----------
    table : mxhybrid.nn.Embedding, mxhybrid.nn.HashEmbedding or TableParameter
    keys : array of integers, path of a .npy file, (path, name) of a tensor in a safetensors file, or None
        A key for each row; if a key comes twice, its last row counts.  None: 0, 1, 2, ...
    rows : array, path of a .npy file, or (path, name) of a tensor in a safetensors file
        Floating-point numbers, of shape (number of keys, width).

    Returns
    -------
    int
        The number of rows that were read.

    Raises
    ------
    InputError
        Keys or rows do not fit the table, or each other; nothing has changed then (raised on all workers).
    CheckpointError
        A file cannot be read (raised on all workers).
    """
    param = getattr(table, 'weight', table)
    if not isinstance(param, TableParameter):
        raise InputError('import_rows: %s is no dynamic table: give an mxhybrid.nn.Embedding or HashEmbedding'
                         % type(table).__name__)
    trainer = trainer_of(param)
    if trainer is None:
        raise InputError('import_rows: %s has no Trainer: make the Trainer first, whose store holds the rows'
                         % param.name)
    workers = workers_of(trainer)
    start_training(trainer)
    sources: List[_GivenRows] = []

    def check() -> int:
        sources.append(_GivenRows(param, keys, rows))
        return sources[0].rows

    count = on_worker_0(workers, 'import_rows', check)
    try:
        assign_rows(workers, param.table, sources[0].pieces() if sources else iter(()))
    except CheckpointError as error:
        raise CheckpointError('%s during the import: the table has the rows before the failure only. Import the file '
                              'again' % error) from None
    return int(count)


class _GivenRows:
    """Keys and rows that were given, checked against the table."""

    def __init__(self, param: Any, keys: Any, rows: Any):
        self._param = param
        self._values = _opened(param.name + ': rows', rows)
        if self._values.dtype.kind != 'f' or self._values.shape[1:] != (param.width,):
            raise InputError('%s: rows of type %s and shape %s: give floating-point numbers of shape (keys, %d)'
                             % (param.name, self._values.dtype, self._values.shape, param.width))
        self.rows = len(self._values)
        self._keys = None if keys is None else _opened(param.name + ': keys', keys)
        if self._keys is None:
            if param.rows is not None and self.rows > param.rows:
                raise InputError('%s: %d rows, but the table has %d: give keys' % (param.name, self.rows, param.rows))
        elif self._keys.shape != (self.rows,) or self._keys.dtype.kind not in 'iu' and self.rows:
            raise InputError('%s: keys of type %s and shape %s for %d rows: give an integer for each row'
                             % (param.name, self._keys.dtype, self._keys.shape, self.rows))
        else:
            self._check_keys(self._keys)

    def _check_keys(self, keys: np.ndarray) -> None:
        """Refuse keys that are no keys of the table; reads them in pieces."""
        last = (1 << 63) - 1 if self._param.rows is None else self._param.rows - 1
        first = -(1 << 63) if self._param.rows is None else 0
        for start_row in range(0, len(keys), PIECE_BYTES // 8):
            piece = keys[start_row:start_row + PIECE_BYTES // 8]
            lowest, highest = int(piece.min()), int(piece.max())
            if lowest < first or highest > last:
                raise InputError('%s: key %d is not a key of the table: give keys from %d to %d'
                                 % (self._param.name, lowest if lowest < first else highest, first, last))

    def pieces(self) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
        """Yield sorted, unique keys and their rows, from some of the given rows at a time."""
        piece_rows = max(1, PIECE_BYTES // (self._param.width * np.dtype(self._param.dtype).itemsize))
        piece_rows = min(piece_rows, getattr(self._param.table, 'max_batch_rows', piece_rows))
        for first in range(0, self.rows, piece_rows):
            last = min(first + piece_rows, self.rows)
            keys = np.arange(first, last) if self._keys is None else self._keys[first:last].astype(np.int64)
            unique, places = np.unique(keys[::-1], return_index=True)  # the first one of those in reverse order
            rows = self._values[first:last][len(keys) - 1 - places]
            yield unique.astype(np.int64), np.ascontiguousarray(rows, self._param.dtype)


def _opened(label: str, source: Any) -> np.ndarray:
    """Return an array that was given, or the mapped array of a file."""
    try:
        if isinstance(source, tuple) and len(source) == 2 and isinstance(source[1], str):
            path, name = os.fspath(source[0]), source[1]
            tensors: Dict[str, np.ndarray] = tensor_files.tensors_of(path)
            if name not in tensors:
                raise InputError('%s: %s has no tensor %r of a type that NumPy has: give one of these names: %s'
                                 % (label, path, name, ', '.join(sorted(tensors)) or 'none'))
            return tensors[name]
        if isinstance(source, (str, os.PathLike)):
            path = os.fspath(source)
            return npy_files.mapped(path)
    except FormatError as error:
        raise InputError('%s: %s %s: give a .npy file, or (path, name) for a tensor in a safetensors file'
                         % (label, path, error)) from error
    except OSError as error:
        raise CheckpointError('%s: %s cannot be read: %s. Give a file that worker 0 can read'
                              % (label, path, error.strerror or error)) from error
    return np.asarray(source)
