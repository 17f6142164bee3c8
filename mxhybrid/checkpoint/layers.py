"""Reads a dynamic table from a whole checkpoint and its deltas: each row comes from the newest of them that has it."""
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Container, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from ..row_store.row_files import widened
from . import npy_files
from .table_files import Columns, Part, TableDescription, columns_of

#: Rows that are merged at a time, over all parts, and their bytes, unless that is less than a row of each part.
MERGED_ROWS, MERGED_BYTES = 1 << 18, 8 << 20

#: The parts that each checkpoint has of a table, from new to old.
Layers = Sequence[Sequence[Part]]


class _MergedKeys:
    """A sorted list of keys that is merged: rows of a part, or keys that a part removes."""

    def __init__(self, keys: np.ndarray, columns: Dict[str, np.ndarray], removes: bool):
        self.keys, self.columns, self.removes = keys, columns, removes
        self.position = 0

    def head(self, step: int) -> np.ndarray:
        """Return the next keys, `step` at most."""
        return self.keys[self.position:self.position + step]

    def advance(self, count: int) -> None:
        """Leave the next keys behind."""
        for array in [self.keys, *self.columns.values()]:
            npy_files.release(array[self.position:self.position + count])
        self.position += count


def find_rows(layers: Layers, keys: np.ndarray, column: str, out: np.ndarray) -> np.ndarray:
    """Write the rows of sorted `keys` to `out`; return a mask of the keys that have a row.

    Memory depends on the number of keys only.
    """
    has_row = np.zeros(len(keys), bool)
    open_places = np.arange(len(keys))
    for layer in layers:
        decided = np.zeros(len(open_places), bool)
        for part in layer:
            places, rows = _search(part.keys, keys[open_places])
            out[open_places[places]] = widened(part.columns[column][rows], out.dtype)
            has_row[open_places[places]] = True
            decided[places] = True
        for part in layer:
            decided[_search(part.removed, keys[open_places])[0]] = True
        open_places = open_places[~decided]
        if not len(open_places):
            break
    return has_row


def removed_keys(layers: Layers) -> Iterator[np.ndarray]:
    """Yield the keys, once each and in pieces, that some layer removes and that have no row in it or a newer one."""
    for number, layer in enumerate(layers):
        for part in layer:
            for start in range(0, len(part.removed), MERGED_ROWS):
                keys = part.removed[start:start + MERGED_ROWS]
                is_newer = np.zeros(len(keys), bool)
                newer = [other for newer_layer in layers[:number] for other in newer_layer]
                for stored in [other.keys for other in [*newer, *layer]] + [other.removed for other in newer]:
                    is_newer[_search(stored, keys)[0]] = True
                yield keys[~is_newer]


def _search(stored: np.ndarray, keys: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Return the places of the `keys` that are stored, and where they are stored."""
    if not len(stored) or not len(keys):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    # Parts of a compacted checkpoint have ranges of keys.
    begin, end = np.searchsorted(keys, stored[0]), np.searchsorted(keys, stored[-1], 'right')
    rows = np.searchsorted(stored, keys[begin:end])
    places = np.flatnonzero(stored[rows] == keys[begin:end])
    return places + begin, rows[places]


def columns_in(layers: Layers, description: TableDescription) -> Columns:
    """Return dtype and width of the columns that a table has in any layer."""
    columns = columns_of(description)
    for part in (part for layer in layers for part in layer):
        for name, array in part.columns.items():
            columns.setdefault(name, (array.dtype, None))
    return columns


def row_bytes(columns: Columns) -> int:
    """Return the bytes of a row and its key."""
    return 8 + sum(np.dtype(dtype).itemsize * (width or 1) for dtype, width in columns.values())


def merged_ahead(layers: Layers, description: TableDescription, column_names: Optional[Container[str]] = None
                 ) -> Iterator[Tuple[np.ndarray, Dict[str, np.ndarray]]]:
    """Yield the pieces of :func:`merged`; a thread merges the next piece while the caller works on one."""
    pieces = merged(layers, description, column_names)
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, pieces, None)
        while True:
            piece = coming.result()
            if piece is None:
                return
            coming = thread.submit(next, pieces, None)
            yield piece


def merged(layers: Layers, description: TableDescription, column_names: Optional[Container[str]] = None
           ) -> Iterator[Tuple[np.ndarray, Dict[str, np.ndarray]]]:
    """Yield all rows of a table in the order of their keys, in pieces of about :data:`MERGED_ROWS`: keys and columns.

    `column_names` has the names of the columns, by default all.  Pages that were read leave the memory of the process.
    """
    def chosen(columns: Dict[str, Any]) -> Dict[str, Any]:
        return {name: column for name, column in columns.items() if column_names is None or name in column_names}

    sources: List[_MergedKeys] = []
    for layer in layers:
        sources += [_MergedKeys(part.keys, chosen(part.columns), False) for part in layer]
        sources += [_MergedKeys(part.removed, {}, True) for part in layer]
    types = chosen(columns_in(layers, description))
    most_rows = min(MERGED_ROWS, MERGED_BYTES // row_bytes(types))
    while True:
        sources = [source for source in sources if source.position < len(source.keys)]
        if not sources:
            return
        # No source has a key up to `limit` that is not among the keys of this round.
        step = max(1, most_rows // len(sources))
        limit = min(source.head(step)[-1] for source in sources)
        counts = [int(np.searchsorted(source.head(step), limit, 'right')) for source in sources]
        keys = np.concatenate([source.head(count) for source, count in zip(sources, counts)])
        # Places of the columns' rows among those of all sources; keys that are removed have no rows.
        places = np.arange(len(keys)) - np.repeat(
            np.cumsum([count if source.removes else 0 for source, count in zip(sources, counts)]), counts)
        if len(sources) > 1 or sources[0].removes:
            keys, first = np.unique(keys, return_index=True)  # the first one is the newest
            places[np.repeat([source.removes for source in sources], counts)] = -1
            places = places[first]
            stays = places >= 0
            if not stays.all():
                keys, places = keys[stays], places[stays]
        columns = {}
        for name, (dtype, width) in types.items():
            column = np.concatenate([
                source.columns[name][source.position:source.position + count] if name in source.columns
                else np.zeros((count,) if width is None else (count, width), dtype)
                for source, count in zip(sources, counts) if not source.removes] or [np.zeros(0, dtype)])
            columns[name] = column if len(sources) == 1 else column.take(places, axis=0)
        for source, count in zip(sources, counts):
            source.advance(count)
        if len(keys):
            yield keys, columns
