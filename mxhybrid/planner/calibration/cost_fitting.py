"""Fits costs to measured seconds by least squares: a fixed part, a part per item, and a part per byte."""
from typing import Any, NamedTuple, Sequence, Tuple

import numpy as np

from ...base.least_squares import nonnegative_least_squares
from ..cluster.cluster_spec import TransferCost
from ..simulator.resource_groups import TokenBucket

#: A faster beginning of transfers counts as a burst if it reduces the error by this factor at least, and if it is
#: faster than the rest by this factor at least.
_GAIN, _FASTER = 0.5, 1.3
#: A peak is at most a thousand times the rate.
_STEEPEST = 1e-3
#: Errors of readings below this share of the longest reading are relative to this share.
_LITTLE = 0.02


class Sample(NamedTuple):
    """A reading: the seconds of a transfer of some items and bytes."""

    items: float
    size: float
    seconds: float


def least_squares(rows: Any, seconds: Any) -> np.ndarray:
    """Return the coefficients, none negative, with the least squared relative error.

    A column that is constant gets 0, unless it is the first one: it cannot be told from the fixed part, which the first
    column stands for.

    - `rows`: array of float, (n, coefficients)
    - `seconds` (array of float, (n,)): readings; negative ones count as 0.
    """
    matrix, readings = np.asarray(rows, float), np.maximum(np.asarray(seconds, float), 0.0)
    weights = 1 / _scale(readings)
    used = [column for column in range(matrix.shape[1]) if column == 0 or np.ptp(matrix[:, column]) > 0]
    coefficients = np.zeros(matrix.shape[1])
    coefficients[used] = nonnegative_least_squares(matrix[:, used] * weights[:, None], readings * weights)
    return coefficients


class StepReading(NamedTuple):
    """The seconds of a core for a step of a Trainer."""

    parameters: float
    #: The number and the bytes of the weights that are updated.
    updated: float
    updated_bytes: float
    #: The number of sums of gradients, and their bytes.
    sums: float
    summed_bytes: float
    seconds: float


class StepFit(NamedTuple):
    """The costs of a step, of updates and of sums, and the relative error of each reading."""

    step: TransferCost
    update: TransferCost
    sum: TransferCost
    errors: np.ndarray


def fit_steps(readings: Sequence[StepReading]) -> StepFit:
    """Return the costs that explain the readings of all steps together.

    The errors of whole steps count.  The cost of sums as the difference of steps with and without them would have the
    errors of both, which are as large as a small sum.
    """
    rows = [(1.0, *reading[:-1]) for reading in readings]
    seconds = [reading.seconds for reading in readings]
    fixed_s, per_parameter_s, per_update_s, per_updated_byte_s, per_sum_s, per_summed_byte_s = coefficients = \
        least_squares(rows, seconds).tolist()
    return StepFit(TransferCost(fixed_s, per_parameter_s, 0.0), TransferCost(0.0, per_update_s, per_updated_byte_s),
                   TransferCost(per_sum_s, 0.0, per_summed_byte_s), relative_errors(rows, seconds, coefficients))


def relative_errors(rows: Any, seconds: Any, coefficients: Any) -> np.ndarray:
    """Return the relative error of each reading."""
    readings = np.asarray(seconds, float)
    return np.abs(np.asarray(rows, float) @ np.asarray(coefficients) - readings) / _scale(readings)


def _scale(readings: np.ndarray) -> np.ndarray:
    """Return the scale of errors: the readings, with a lower bound for readings that are almost 0."""
    return np.maximum(readings, max(1e-9, _LITTLE * float(readings.max())))


def fit_cost(samples: Sequence[Sample], latency_s: float = 0.0) -> Tuple[TransferCost, np.ndarray]:
    """Return a cost and its relative errors; items that do not vary are counted in the fixed part."""
    rows = [(1.0, sample.items, sample.size) for sample in samples]
    seconds = [sample.seconds for sample in samples]
    coefficients = least_squares(rows, seconds)
    fixed, per_item, per_byte = coefficients.tolist()
    return TransferCost(fixed, per_item, per_byte, latency_s), relative_errors(rows, seconds, coefficients)


def fit_bucket(sizes: Sequence[float], seconds: Sequence[float]) -> Tuple[TokenBucket, float, np.ndarray]:
    """Return the token bucket of a link, its latency, and the relative errors, from transfers after a pause.

    With a burst of B bytes at a peak p above the rate r, a transfer of S bytes takes ``latency + max(S / p,
    (S - B) / r)``: B follows from the intercept of the line through the large transfers.

    - `sizes`: bytes, ascending, at least five.
    """
    size, readings = np.asarray(sizes, float), np.asarray(seconds, float)
    latency, slope = least_squares(np.stack([np.ones_like(size), size], axis=1), readings)
    best, best_latency = TokenBucket(1 / max(slope, 1e-15)), float(latency)
    best_error = _GAIN ** 2 * _mean_square(best, best_latency, size, readings)
    for split in range(2, len(size) - 2):
        begin, peak_slope = least_squares(np.stack([np.ones(split), size[:split]], axis=1), readings[:split])
        rest, rate_slope = _line(size[split:], readings[split:])
        if rate_slope <= _FASTER * peak_slope or rate_slope <= 0 or rest >= begin:
            continue
        bucket = TokenBucket(1 / rate_slope, 1 / max(peak_slope, _STEEPEST * rate_slope), (begin - rest) / rate_slope)
        error = _mean_square(bucket, float(begin), size, readings)
        if error < best_error:
            best, best_latency, best_error = bucket, float(begin), error
    return best, best_latency, transfer_errors(best, best_latency, size, readings)


def _mean_square(bucket: TokenBucket, latency: float, size: np.ndarray, readings: np.ndarray) -> float:
    return float(np.mean(transfer_errors(bucket, latency, size, readings) ** 2))


def _line(size: np.ndarray, readings: np.ndarray) -> Tuple[float, float]:
    """Return the intercept, which may be negative, and the slope with the least squared relative error."""
    slope, intercept = np.polyfit(size, readings, 1, w=1 / readings)
    return float(intercept), float(slope)


def transfer_seconds(bucket: TokenBucket, latency: float, size: np.ndarray) -> np.ndarray:
    """Return the seconds of transfers of `size` bytes on a link after a pause."""
    if not bucket.burst:
        return latency + size / bucket.rate
    return latency + np.maximum(size / bucket.peak, (size - bucket.burst) / bucket.rate)


def transfer_errors(bucket: TokenBucket, latency: float, size: np.ndarray, readings: np.ndarray) -> np.ndarray:
    """Return the relative errors of :func:`transfer_seconds`."""
    return np.abs(transfer_seconds(bucket, latency, size) - readings) / readings
