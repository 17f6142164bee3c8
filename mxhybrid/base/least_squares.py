"""Least squares with coefficients that must not be negative, for a few columns."""
import itertools
from typing import Any, Sequence

#: Relative size of residuals that are rounding errors, with no meaning for the choice between two fits.
ROUNDING = 1e-12


def nonnegative_least_squares(matrix: Any, values: Any, unbounded: Sequence[int] = ()) -> Any:
    """Return the coefficients with the least squared error, none negative except those of `unbounded` columns.

    The optimum under these bounds is the optimum without bounds of some subset of the columns, where the other
    coefficients are 0.  All subsets are tried: their number doubles with each column.  If fits are equally good up to
    rounding errors, the one with the fewest columns is returned.

    - `matrix`: array of float, (rows, columns)
    - `values`: array of float, (rows,)
    - `unbounded`: columns that every fit has, with coefficients of either sign.
    """
    import numpy as np  # the package's base is imported without it

    matrix, values = np.asarray(matrix, float), np.asarray(values, float)
    # Columns may differ by many orders of magnitude, as seconds of an item and of a byte do.
    scales = np.maximum(np.abs(matrix).max(axis=0), 1e-300)
    scaled = matrix / scales
    bounded = [column for column in range(matrix.shape[1]) if column not in unbounded]
    tolerance = ROUNDING ** 2 * float(np.sum(values ** 2))
    best, best_error = np.zeros(matrix.shape[1]), float('inf')
    for count in range(len(bounded) + 1):
        for subset in itertools.combinations(bounded, count):
            coefficients = np.zeros(matrix.shape[1])
            used = [*unbounded, *subset]
            if used:
                coefficients[used] = np.linalg.lstsq(scaled[:, used], values, rcond=None)[0]
            error = float(np.sum((scaled @ coefficients - values) ** 2))
            if (coefficients[list(subset)] >= 0).all() and error < best_error - tolerance:
                best, best_error = coefficients / scales, error
    return best
