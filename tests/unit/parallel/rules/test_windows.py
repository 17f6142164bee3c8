"""The windows of images: which rows a shard of a convolution reads."""
import itertools

import numpy as np
import pytest

from mxhybrid.parallel.rules.windows import window

SIZES = list(itertools.product((1, 2, 3), (1, 2, 3), (0, 1, 2), (1, 2)))
COUNT = 13


def outputs_of(rows, kernel, stride, dilate):
    """Return the rows that each output of some padded rows reads; -1 for a row of padding."""
    reach = dilate * (kernel - 1) + 1
    return [rows[first:first + reach:dilate] for first in range(0, len(rows) - reach + 1, stride)]


@pytest.mark.parametrize('kernel, stride, pad, dilate', SIZES)
def test_a_range_gives_the_outputs_of_the_whole(kernel, stride, pad, dilate):
    def row_or_padding(row):
        return row if 0 <= row < COUNT else -1

    whole = outputs_of([row_or_padding(row) for row in range(-pad, COUNT + pad)], kernel, stride, dilate)
    for low, high in itertools.combinations(range(len(whole) + 1), 2):
        (first, end), left_pad = window((low, high), COUNT, len(whole), kernel, stride, pad, dilate)
        rows = [row_or_padding(row) for row in range(first - left_pad, end + left_pad)]
        np.testing.assert_array_equal(outputs_of(rows, kernel, stride, dilate), whole[low:high])
