"""Merges a checkpoint and the ones that it builds on, a base and its deltas, to a whole one, in bounded memory."""
import contextlib
import math
import os
from typing import Any, Callable, Dict, List, Optional

from ..base.errors import CheckpointError
from ..row_store.row_files import WAITING_FILES
from . import files, folder, npy_files, table_files
from .layers import Layers, columns_in, merged_ahead, row_bytes
from .npy_files import ArrayWriter
from .reader import Reader, newest
from .table_files import PartWriter, TableDescription

#: Bytes of a part that is written.
PART_BYTES = 1 << 30
#: Elements of an array that are copied at a time.
_COPIED_ELEMENTS = 1 << 20

#: Called with the name of a table and the number of its rows that were written since the last call.
Progress = Callable[[str, int], None]


def compact(directory: Any, progress: Progress = lambda name, rows: None) -> Optional[str]:
    """Replace the newest checkpoint of a directory, if it is a delta, by a whole one with the same content.

    The base and the deltas that no other checkpoint builds on are removed afterwards.  A job may save at the same time,
    and a kill leaves the checkpoints as they were.

    Parameters
    ----------
    directory : str or path
    progress : callable, optional
        Called with the name of a table and the number of rows that were written since the last call.

    Returns
    -------
    str or None
        The path of the new checkpoint; None if the newest one is whole.

    Raises
    ------
    CheckpointError
        There is no checkpoint, none is whole, or the disk is full; nothing has changed then.
    """
    directory = os.path.abspath(os.fspath(directory))
    if not folder.names(directory):
        raise CheckpointError('%s has no checkpoint' % directory)
    try:
        with contextlib.ExitStack() as stack:
            with folder.kept(directory) as names:
                source = newest(directory, names)
                assert source is not None
                bases = source.bases()
                if not bases:
                    return None
                with folder.locked(directory):
                    writer = stack.enter_context(files.Writer(directory, files.COMPACTING))
                _copy(source, bases, writer, progress)
            with folder.locked(directory):
                content = {name: value for name, value in source.content.items() if name not in _OF_THE_FILES}
                path = writer.commit_in_place_of(source, content)
                old = _names_of([source] + bases)
                writer.remove_unneeded(old, [name for name in folder.names(directory) if name not in old],
                                       lambda reader: _names_of(reader.bases()))
            return path
    except OSError as error:
        raise CheckpointError('cannot compact %s: %s' % (directory, error)) from error


#: Entries of a manifest that say which files and checkpoints belong to it.
_OF_THE_FILES = ('arrays', 'shards', 'dynamic_tables', 'base', 'oldest_base', 'format', 'step', 'replaces')


def _names_of(readers: List[Reader]) -> List[str]:
    return [os.path.basename(reader.path) for reader in readers]


def _copy(source: Reader, bases: List[Reader], writer: files.Writer, progress: Progress) -> None:
    for name, entry in source.content['arrays'].items():
        elements = math.prod(entry['shape'])
        writer.add(name, tuple(entry['shape']), entry['dtype'], (
            source.read(name, start, min(start + _COPIED_ELEMENTS, elements))
            for start in range(0, elements, _COPIED_ELEMENTS)))
    for number, (name, entry) in enumerate(source.tables.items()):
        description = TableDescription.from_json(entry)
        path = writer.make_directory(table_files.table_directory(number))
        writer.add_table(name, description, False,
                         _merge(path, name, description, source.layers(name, bases), progress))


def _merge(path: str, name: str, description: TableDescription, layers: Layers,
           progress: Progress) -> List[Dict[str, Any]]:
    """Write the rows of all layers below a path; return the entries of the parts."""
    columns = columns_in(layers, description)
    most_rows = -(-PART_BYTES // row_bytes(columns))
    entries: List[Dict[str, Any]] = []
    has_waiting = any(os.path.exists(path) for path in _paths(layers, WAITING_FILES[0][0]))
    pieces = merged_ahead(layers, description)
    piece = next(pieces, None)
    while piece is not None or has_waiting and not entries:
        part_path = os.path.join(path, str(len(entries)))
        with PartWriter(part_path, columns) as writer:
            while piece is not None and writer.rows < most_rows:
                writer.append(*piece)
                progress(name, len(piece[0]))
                piece = next(pieces, None)
        for waiting_name, dtype in WAITING_FILES if has_waiting and not entries else ():
            with ArrayWriter(os.path.join(part_path, waiting_name + '.npy'), dtype) as file:
                for waiting_path in filter(os.path.exists, _paths(layers, waiting_name)):
                    file.append(npy_files.mapped(waiting_path))
        entries.append(table_files.seal(part_path))
    return entries


def _paths(layers: Layers, name: str) -> List[str]:
    """Return the paths that a file of each part of the newest checkpoint has, if it exists."""
    return [os.path.join(part.path, name + '.npy') for part in layers[0]]
