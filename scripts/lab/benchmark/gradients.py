"""The gradients that every worker has, chosen so that sums are exact in float32 and every worker's share shows.

A row of worker r's gradient is ``1 + r % 7 + column % 5``, whatever its id; dense parameter i is ``1 + r % 7 + i % 3``
throughout.  The sums of a contender are compared, by checksums, with sums that are computed here from the ids alone.
"""
from typing import Dict, List, Sequence, Tuple

import numpy as np

from .workloads import Dense, Table, Workload

_RANKS, _COLUMNS, _PARAMETERS = 7, 5, 3

#: The error of a sum in float32 that is added up in another order.
_FLOAT32 = 1e-6
#: The errors of values that are rounded once, relative to their sum.  float16: its unit roundoff.  int8: half a 127th
#: of the largest element of a row, which is less than twice the mean; errors of random rounding cancel.
ROUNDOFF = {'float16': 2.0 ** -11, 'int8': 1 / 127}

#: Checksum of rows: their sum, and their sum weighted by position.
Checksum = Tuple[float, float]


def row_pattern(rank: int, count: int, width: int) -> np.ndarray:
    """Gradient of `count` rows: float32, shape (count, width)."""
    row = 1 + rank % _RANKS + np.arange(width) % _COLUMNS
    return np.tile(row.astype(np.float32), (count, 1))


def dense_value(rank: int, index: int) -> float:
    """Every element of the gradient of the dense parameter with number `index` of the dense ones."""
    return float(1 + rank % _RANKS + index % _PARAMETERS)


def checksum(rows: np.ndarray) -> Checksum:
    """Checksum of an array; a one-dimensional view counts as one column."""
    sums = np.asarray(rows, np.float64).reshape(len(rows), -1).sum(axis=1)
    return float(sums.sum()), float((sums * np.arange(1, len(sums) + 1)).sum())


class Expected:
    """Sums over a number of workers, from ids alone; `times` are the numbers of exchanges of each batch."""

    def __init__(self, workload: Workload, size: int, times: Dict[int, int]):
        self._size = size
        self._steps = sum(times.values())
        self._sums: Dict[str, Tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        drawn = {(batch, rank): workload.draw(batch, rank) for batch in times for rank in range(size)}
        for table in workload.tables:
            ids, values, counts = [], [], []
            for (batch, rank), batch_ids in drawn.items():
                unique = np.unique(batch_ids[table.name])
                ids.append(unique)
                values.append(np.full(len(unique), times[batch] * (1.0 + rank % _RANKS)))
                counts.append(np.full(len(unique), float(times[batch])))
            union, inverse = np.unique(np.concatenate(ids), return_inverse=True)
            self._sums[table.name] = (union, np.bincount(inverse, np.concatenate(values)),
                                      np.bincount(inverse, np.concatenate(counts)))

    def of_table(self, table: Table, ids: np.ndarray) -> Checksum:
        """Checksum of the summed rows `ids` (unique, sorted)."""
        union, values, counts = self._sums[table.name]
        at = np.minimum(np.searchsorted(union, ids), len(union) - 1)
        touched = union[at] == ids
        columns = float((np.arange(table.width) % _COLUMNS).sum())
        return checksum(np.where(touched, values[at] * table.width + counts[at] * columns, 0.0))

    def of_dense(self, parameter: Dense, index: int) -> Checksum:
        """Return the checksum of a summed dense parameter."""
        total = self._steps * sum(dense_value(rank, index) for rank in range(self._size))
        rows, width = parameter.shape[0], parameter.elements // parameter.shape[0]
        return checksum(np.full(rows, total * width))


def differences(workload: Workload, expected: Expected, rank: int, batch: int, actual: Dict[str, Checksum],
                rounded: Sequence[Expected] = (), roundoff: float = 0.0) -> List[str]:
    """Return sentences about the parameters whose sums are not as expected.

    All values are positive.  If a contender rounds some of them for transport, a checksum is off by at most `roundoff`
    times the checksums of these values, which are in `rounded`.
    """
    ids = {name: np.unique(drawn) for name, drawn in workload.draw(batch, rank).items()}

    def checksums(sums: Expected) -> Dict[str, np.ndarray]:
        values = {table.name: sums.of_table(table, ids[table.name]) for table in workload.tables}
        values.update({parameter.name: sums.of_dense(parameter, index)
                       for index, parameter in enumerate(workload.dense)})
        return {name: np.array(value) for name, value in values.items()}

    expected_checksums = checksums(expected)
    allowed = {name: _FLOAT32 * value for name, value in expected_checksums.items()}
    for sums in rounded:
        for name, value in checksums(sums).items():
            allowed[name] = allowed[name] + roundoff * value
    return ['%s on worker %d: checksum %s, expected %s' % (name, rank, tuple(actual[name]), tuple(value))
            for name, value in expected_checksums.items() if not (np.abs(actual[name] - value) <= allowed[name]).all()]
