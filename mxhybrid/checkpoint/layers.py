"""Reads a dynamic table from a whole checkpoint and its deltas: each row comes from the newest of them that has it."""
from typing import Dict, Iterator, List, Sequence, Tuple

import numpy as np

from .table_files import Part, TableDescription, columns_of

#: Rows that are merged at a time, over all parts.
MERGED_ROWS = 1 << 18

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


def find_rows(layers: Layers, keys: np.ndarray, column: str, out: np.ndarray) -> np.ndarray:
    """Write the rows of sorted, unique `keys` to `out`; return a mask of the keys that have a row.

    Memory depends on the number of keys only.
    """
    has_row = np.zeros(len(keys), bool)
    open_places = np.arange(len(keys))
    for layer in layers:
        decided = np.zeros(len(open_places), bool)
        for part in layer:
            places, rows = _search(part.keys, keys[open_places])
            out[open_places[places]] = part.columns[column][rows]
            has_row[open_places[places]] = True
            decided[places] = True
        for part in layer:
            decided[_search(part.removed, keys[open_places])[0]] = True
        open_places = open_places[~decided]
        if not len(open_places):
            break
    return has_row


def _search(stored: np.ndarray, keys: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Return the places of the `keys` that are stored, and where they are stored."""
    if not len(stored) or not len(keys):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    rows = np.minimum(np.searchsorted(stored, keys), len(stored) - 1)
    places = np.flatnonzero(stored[rows] == keys)
    return places, rows[places]


def merged(layers: Layers, description: TableDescription) -> Iterator[Tuple[np.ndarray, Dict[str, np.ndarray]]]:
    """Yield all rows of a table in the order of their keys, in pieces of about :data:`MERGED_ROWS`: keys and columns.
    """
    sources: List[_MergedKeys] = []
    for layer in layers:
        sources += [_MergedKeys(part.keys, part.columns, False) for part in layer]
        sources += [_MergedKeys(part.removed, {}, True) for part in layer]
    types = dict(columns_of(description))
    for source in sources:
        for name, column in source.columns.items():
            types.setdefault(name, (column.dtype, None))
    while True:
        sources = [source for source in sources if source.position < len(source.keys)]
        if not sources:
            return
        # No source has a key up to `limit` that is not among the keys of this round.
        step = max(1, MERGED_ROWS // len(sources))
        limit = min(source.head(step)[-1] for source in sources)
        counts = [int(np.searchsorted(source.head(step), limit, 'right')) for source in sources]
        keys, first = np.unique(np.concatenate([source.head(count) for source, count in zip(sources, counts)]),
                                return_index=True)  # the first one is the newest
        ends = np.cumsum(counts)
        columns = {name: np.zeros((len(keys),) if width is None else (len(keys), width), dtype)
                   for name, (dtype, width) in types.items()}
        stays = np.ones(len(keys), bool)
        for source, count, end in zip(sources, counts, ends):
            places = np.flatnonzero((first >= end - count) & (first < end))
            if source.removes:
                stays[places] = False
            else:
                rows = first[places] - (end - count) + source.position
                for name, column in source.columns.items():
                    columns[name][places] = column[rows]
            source.position += count
        if not stays.all():
            keys, columns = keys[stays], {name: column[stays] for name, column in columns.items()}
        if len(keys):
            yield keys, columns
