"""Costs by least squares: what seconds of several sizes say about fixed parts, parts by count, and parts by byte."""
from typing import Any, NamedTuple, Sequence, Tuple

import numpy as np

from ...base.least_squares import nonnegative_least_squares
from ..cluster.cluster_spec import TransferCost
from ..simulator.token_bucket import Bucket

#: A faster beginning of transfers is a burst if they lose less than half of their error without it, and if it is so
#: many times as fast as the rest.
_GAIN, _FASTER = 0.5, 1.3
#: No peak is more than a thousand times the rate.
_STEEPEST = 1e-3
#: Of the longest reading, below which errors count as of this.
_LITTLE = 0.02


class Sample(NamedTuple):
    """Seconds that a transfer took, of so many items and bytes."""

    items: float
    size: float
    seconds: float


def least_squares(rows: Any, seconds: Any) -> np.ndarray:
    """Coefficients, none negative, that make up `seconds`, (n,), from `rows`, (n, coefficients), with the least error
    relative to each.

    A column that is the same in all rows but the first column, which is that of what is fixed, gets 0: nobody can tell
    it from that.
    """
    matrix, readings = np.asarray(rows, float), np.maximum(np.asarray(seconds, float), 0.0)
    weights = 1 / _scale(readings)
    used = [column for column in range(matrix.shape[1]) if column == 0 or np.ptp(matrix[:, column]) > 0]
    coefficients = np.zeros(matrix.shape[1])
    coefficients[used] = nonnegative_least_squares(matrix[:, used] * weights[:, None], readings * weights)
    return coefficients


def relative_errors(rows: Any, seconds: Any, found: Any) -> np.ndarray:
    """Relative ones of what coefficients make up."""
    wanted = np.asarray(seconds, float)
    return np.abs(np.asarray(rows, float) @ np.asarray(found) - wanted) / _scale(wanted)


def _scale(wanted: np.ndarray) -> np.ndarray:
    """What errors are relative to: readings that are next to nothing are as good as those that are a little larger."""
    return np.maximum(wanted, max(1e-9, _LITTLE * float(wanted.max())))


def fit_cost(samples: Sequence[Sample], latency_s: float = 0.0) -> Tuple[TransferCost, np.ndarray]:
    """A cost, and the relative errors that it leaves; items that do not vary are part of what is fixed."""
    rows = [(1.0, one.items, one.size) for one in samples]
    seconds = [one.seconds for one in samples]
    found = least_squares(rows, seconds)
    fixed, per_item, per_byte = (float(one) for one in found)
    return TransferCost(fixed, per_item, per_byte, latency_s), relative_errors(rows, seconds, found)


def fit_bucket(sizes: Sequence[float], seconds: Sequence[float]) -> Tuple[Bucket, float, np.ndarray]:
    """What a way gives to transfers after idleness: its bucket, its latency, and the relative errors.

    With a burst of B bytes at a peak p above the rate r, a transfer of S bytes takes ``latency + max(S / p,
    (S - B) / r)``: B is in the intercept of the large ones.

    Parameters
    ----------
    sizes : sequence of float
        Bytes, ascending, at least five.
    seconds : sequence of float
    """
    size, taken = np.asarray(sizes, float), np.asarray(seconds, float)
    latency, slope = least_squares(np.stack([np.ones_like(size), size], axis=1), taken)
    best, line = Bucket(1 / max(slope, 1e-15)), float(latency)
    left = _GAIN ** 2 * _mean_square(best, line, size, taken)
    for at in range(2, len(size) - 2):
        begin, peak_slope = least_squares(np.stack([np.ones(at), size[:at]], axis=1), taken[:at])
        rest, rate_slope = _line(size[at:], taken[at:])
        if rate_slope <= _FASTER * peak_slope or rate_slope <= 0 or rest >= begin:
            continue
        bucket = Bucket(1 / rate_slope, 1 / max(peak_slope, _STEEPEST * rate_slope), (begin - rest) / rate_slope)
        error = _mean_square(bucket, float(begin), size, taken)
        if error < left:
            best, line, left = bucket, float(begin), error
    return best, line, transfer_errors(best, line, size, taken)


def _mean_square(bucket: Bucket, latency: float, size: np.ndarray, taken: np.ndarray) -> float:
    return float(np.mean(transfer_errors(bucket, latency, size, taken) ** 2))


def _line(size: np.ndarray, taken: np.ndarray) -> Tuple[float, float]:
    """Intercept, which may be negative, and slope, with the least relative error."""
    weights = 1 / taken
    found = np.linalg.lstsq(np.stack([weights, size * weights], axis=1), np.ones_like(taken), rcond=None)[0]
    return float(found[0]), float(found[1])


def transfer_seconds(bucket: Bucket, latency: float, size: np.ndarray) -> np.ndarray:
    """What transfers after idleness take on a way."""
    if not bucket.burst:
        return latency + size / bucket.rate
    return latency + np.maximum(size / bucket.peak, (size - bucket.burst) / bucket.rate)


def transfer_errors(bucket: Bucket, latency: float, size: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """Relative ones of :func:`transfer_seconds`."""
    return np.abs(transfer_seconds(bucket, latency, size) - taken) / taken
