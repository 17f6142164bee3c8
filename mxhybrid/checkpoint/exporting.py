"""Exports tables of a checkpoint to files that other programs can read; docs/serving.md describes the files.

::

    exported/
        manifest.json
        table-00000/            one of these, by the format
            keys.npy, rows.npy, scales.npy, state0.npy
            table.parquet
            00000.safetensors, 00001.safetensors

The directory is written under another name, flushed to the disk and then renamed.
"""
import contextlib
import fnmatch
import importlib
import json
import os
from typing import Any, ContextManager, Dict, Iterator, List, Optional, Tuple, Union

import numpy as np

from ..base.errors import CheckpointError, InputError, SettingError
from ..base.files import sync_directory, write_atomically
from ..row_store.row_files import widened
from . import folder, layers, leftovers, table_files
from .compaction import Progress
from .read_only import DEFAULT_KEY, OpenCheckpoint, ReadOnlyArray, ReadOnlyTable, open_checkpoint
from .reader import MANIFEST, safetensors, shard_file
from .table_files import Columns, PartWriter

#: The number of the layout of an export.
FORMAT = 1
DTYPES = ('float32', 'float16', 'int8')
_WRITING = '.writing'
_MAX_INT8, _SMALLEST = np.float32(127), np.float32(2.0 ** -119)


class _Parquet(ContextManager['_Parquet']):
    """Writes rows to a Parquet file, a row group at a time; a context manager like PartWriter."""

    def __init__(self, path: str, columns: Columns):
        os.makedirs(path)
        self._arrow = _package('pyarrow')
        schema = [('keys', self._arrow.int64())]
        for name, (dtype, width) in columns.items():
            kind = self._arrow.from_numpy_dtype(np.dtype(dtype))
            schema.append((name, kind if width is None else self._arrow.list_(kind, width)))
        self._schema = self._arrow.schema(schema)
        self._writer = _package('pyarrow.parquet').ParquetWriter(
            os.path.join(path, 'table.parquet'), self._schema, compression='none', use_dictionary=False,
            write_statistics=['keys'])

    def __exit__(self, *exception: Any) -> None:
        self._writer.close()

    def append(self, keys: np.ndarray, columns: Dict[str, np.ndarray]) -> None:
        """Write further rows."""
        arrays = [self._arrow.array(keys)]
        for name, kind in list(zip(self._schema.names, self._schema.types))[1:]:
            values = self._arrow.array(columns[name].reshape(-1))
            arrays.append(values if columns[name].ndim == 1 else
                          self._arrow.FixedSizeListArray.from_arrays(values, kind.list_size))
        self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))


class _Tensors(ContextManager['_Tensors']):
    """Writes rows to safetensors files, each with a range of keys; a context manager like PartWriter."""

    def __init__(self, path: str, columns: Columns):
        os.makedirs(path)
        self._path, self._files, self._save = path, 0, safetensors().numpy.save

    def __exit__(self, *exception: Any) -> None:
        pass

    def append(self, keys: np.ndarray, columns: Dict[str, np.ndarray]) -> None:
        """Write further rows."""
        arrays = {name: np.ascontiguousarray(array) for name, array in {'keys': keys, **columns}.items()}
        with open(os.path.join(self._path, shard_file(self._files)), 'xb') as file:
            file.write(self._save(arrays))
        self._files += 1


#: Formats by name.
FORMATS: Dict[str, Any] = {'npy': PartWriter, 'parquet': _Parquet, 'safetensors': _Tensors}


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SettingError('export to Parquet needs the package pyarrow (%s): pip install pyarrow' % error) from error


def export(directory: Any, output: Any, tables: str = '*', *, to: str = 'npy', dtype: Optional[str] = None,
           state: bool = True, progress: Progress = lambda name, rows: None) -> str:
    """Write tables of the newest checkpoint of a directory to files for other programs, sorted by key.

    It needs no MXNet and no job; memory is bounded.  A failure leaves nothing behind; what a killed export leaves, the
    next export to the same `output` removes.

    Parameters
    ----------
    directory : str or path
        The directory that :func:`save` writes to, or that of one checkpoint.
    output : str or path
        A directory that does not exist yet.
    tables : str
        The name of a table or dense weight, or a pattern of names with ``*`` and ``?``.
    to : {'npy', 'parquet', 'safetensors'}
    dtype : {'float32', 'float16', 'int8'}, optional
        The type of the rows.  ``'int8'`` adds a scale for each row.  Default: that of the table.
    state : bool
        Whether to write optimizer state of dynamic tables, in their type.
    progress : callable, optional
        Called with the name of a table and the number of rows that were written since the last call.

    Returns
    -------
    str
        The path of `output`.

    Raises
    ------
    InputError
        The checkpoint has no such table, `output` exists, or rows cannot have the dtype.
    CheckpointError
        There is no checkpoint, none is whole, or the disk is full.
    SettingError
        The format needs a package that is not installed.
    """
    if to not in FORMATS:
        raise InputError('export: to=%r is no format: give one of %s' % (to, ', '.join(FORMATS)))
    if dtype is not None and dtype not in DTYPES:
        raise InputError('export: dtype=%r: give one of %s' % (dtype, ', '.join(DTYPES)))
    if to == 'parquet':
        _package('pyarrow.parquet')
    output = os.path.abspath(os.fspath(output))
    if os.path.lexists(output):
        raise InputError('export: %s exists: give a directory that does not exist yet, or remove it' % output)
    with open_checkpoint(directory) as checkpoint:
        names = _matching(checkpoint, tables)
        try:
            with _written_aside(output) as path:
                _write(path, checkpoint, names, to, dtype, state, progress)
        except OSError as error:
            raise CheckpointError('cannot export to %s: %s. Nothing was left there' % (output, error)) from error
    return output


def _matching(checkpoint: OpenCheckpoint, pattern: str) -> List[str]:
    names = [name for name in checkpoint if fnmatch.fnmatchcase(name, pattern)
             or fnmatch.fnmatchcase(name, pattern + '.weight')]
    if not names:
        raise InputError('export: no table of %s has the name %r, but there are %s: give one of these, or a pattern '
                         'with *' % (checkpoint.path, pattern, ', '.join(sorted(checkpoint)) or 'none'))
    return names


@contextlib.contextmanager
def _written_aside(output: str) -> Iterator[str]:
    """Yield a new directory that gets its name at the end, if there was no error."""
    aside = output + _WRITING
    if os.path.lexists(aside):
        if folder.is_in_use(aside):
            raise InputError('export: another process writes %s: wait for its end, or give another directory' % aside)
        leftovers.delete(aside)
    os.mkdir(aside)
    with folder.shared(aside):
        try:
            yield aside
            sync_directory(aside)
            os.rename(aside, output)
            sync_directory(os.path.dirname(output))
        finally:
            if os.path.lexists(aside):
                with leftovers.tried(aside):
                    leftovers.delete(aside)


def _write(path: str, checkpoint: OpenCheckpoint, names: List[str], to: str, dtype: Optional[str], state: bool,
           progress: Progress) -> None:
    entries = {}
    for number, name in enumerate(names):
        table = checkpoint[name]
        directory = table_files.table_directory(number)
        rows, columns = _write_table(os.path.join(path, directory), table, to, dtype, state, progress)
        records = table_files.sealed_files(os.path.join(path, directory))
        entries[name] = {
            'directory': directory, 'rows': rows, 'columns': {
                column: {'dtype': np.dtype(kind).name, 'width': width} for column, (kind, width) in columns.items()},
            'files': records, **_of_the_table(table)}
    content = {'format': FORMAT, 'to': to, 'checkpoint': os.path.basename(checkpoint.path), 'step': checkpoint.step,
               'saved_at': checkpoint.saved_at, 'tables': entries}
    write_atomically(os.path.join(path, MANIFEST), json.dumps(content, indent=1).encode())


def _of_the_table(table: Union[ReadOnlyTable, ReadOnlyArray]) -> Dict[str, Any]:
    """Return the entries of the manifest that describe the table as it was trained."""
    if isinstance(table, ReadOnlyArray):
        return {'trained_dtype': table.dtype.name, 'shape': list(table.shape)}
    admits = table.description.options.get('admit', 1) > 1
    return {'trained_dtype': table.dtype.name, 'row_dtype': table.description.options.get('row_dtype', ''),
            'first_values': table.description.first_values,
            'default_key': int(DEFAULT_KEY) if admits else None}


def _write_table(path: str, table: Union[ReadOnlyTable, ReadOnlyArray], to: str, dtype: Optional[str], state: bool,
                 progress: Progress) -> Tuple[int, Columns]:
    """Write a table; return the number of its rows, and dtype and width of its columns."""
    columns: Columns = {}
    if isinstance(table, ReadOnlyTable):
        if state:
            columns = {name: kind for name, kind in table_files.columns_of(table.description).items() if name != 'rows'}
        width = table.width
        pieces = layers.merged_ahead(table.layers, table.description, ('rows', *columns))
    else:
        width = int(np.prod(table.shape[1:]))
        pieces = ((keys, {'rows': rows}) for keys, rows in table.pieces())
    kind = np.dtype(dtype if dtype is not None and table.dtype.kind == 'f' else table.dtype)
    columns = {'rows': (kind, width), **({'scales': (np.float32, None)} if kind == np.int8 != table.dtype else {}),
               **columns}
    total = 0
    with FORMATS[to](path, columns) as file:
        for keys, piece in pieces:
            piece.update(_converted(table.name, keys, widened(piece['rows'], table.dtype), kind))
            file.append(keys, piece)
            total += len(keys)
            progress(table.name, len(keys))
    return total, columns


def _converted(name: str, keys: np.ndarray, rows: np.ndarray, dtype: Any) -> Dict[str, np.ndarray]:
    """Return rows of another type and, for int8, their scales; the rounding is that of ``kernels/src/kernels/int8.h``.
    """
    if rows.dtype == dtype:
        return {'rows': rows}
    with np.errstate(over='ignore', invalid='ignore'):
        if dtype == np.int8:
            values = rows.astype(np.float32)
            largest = np.abs(values).max(axis=1, initial=np.float32(0))
            is_wrong = ~np.isfinite(largest)
            largest[largest < _SMALLEST] = 0
            factors = np.divide(_MAX_INT8, largest, out=np.zeros_like(largest), where=largest > 0)
            result = {'rows': np.rint(values * factors[:, None]).astype(np.int8), 'scales': largest / _MAX_INT8}
        else:
            result = {'rows': rows.astype(dtype)}
            is_wrong = (np.isfinite(rows) & ~np.isfinite(result['rows'])).any(axis=1)
    if is_wrong.any():
        raise InputError('export: the row of key %d of %s has values that %s cannot hold: export it as its own type, %s'
                         % (keys[is_wrong][0], name, np.dtype(dtype).name, rows.dtype))
    return result
