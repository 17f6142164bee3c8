"""Rows and dense sums that travel as int8, in NumPy: the arithmetic of ``kernels/src/kernels/int8.h``, bit for bit."""
import numpy as np

from .philox import philox4x32

#: Elements of a dense sum that have a scale in common, and the smallest magnitude of a row that is not sent as zeros.
BLOCK, SMALLEST = 256, np.float32(2.0 ** -119)
LEVELS = np.float32(127)
#: The source of answers to pulls, in place of a host.
ANSWERS = 0xFFFFFFFF


def random_fractions(row, pushes, table, source, width):
    """Return the numbers in [0, 1), multiples of 2^-16, by which the elements of a row are rounded."""
    bits, fractions = row % (1 << 64), []
    for block in range((width + 7) // 8):
        for word in philox4x32([bits & 0xFFFFFFFF, bits >> 32, pushes, block], [table, source]):
            fractions += [word & 0xFFFF, word >> 16]
    return np.array(fractions[:width], np.float32) / np.float32(1 << 16)


def rounded(values, fractions=None):
    """Return a row of float32 as it arrives, rounded to nearest or by random `fractions`."""
    values = np.asarray(values, np.float32)
    if not np.isfinite(values).all():
        return np.full_like(values, np.nan)
    largest = np.abs(values).max(initial=np.float32(0))
    if largest < SMALLEST:
        return np.zeros_like(values)
    scale, multiples = largest / LEVELS, values * (LEVELS / largest)
    if fractions is None:
        multiples = np.rint(multiples)
    else:
        shifted = np.clip(multiples, -LEVELS, LEVELS) + np.float32(128)
        multiples = np.floor(shifted + fractions) - np.float32(128)
    return multiples.astype(np.float32) * scale


class Feedback:
    """The residuals of an array, with the rounding of its blocks."""

    def __init__(self, count):
        self.residuals = np.zeros(count, np.float32)

    def round(self, values):
        """Return values as they arrive, and keep the residuals."""
        corrected = values + self.residuals
        arrived = np.concatenate([rounded(corrected[start:start + BLOCK])
                                  for start in range(0, len(values), BLOCK)])
        whole = ~np.isnan(arrived)
        self.residuals[whole] = (corrected - arrived)[whole]
        return arrived
