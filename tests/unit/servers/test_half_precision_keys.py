"""The wire format of rows of a table: unchanged, or as pairs of float16."""
import numpy as np
import pytest
from hypothesis import given, strategies as st

from mxhybrid.servers.half_precision_keys import WireFormat, packed_width, unpack

pytestmark = pytest.mark.both_pythons


@pytest.mark.parametrize('width', [1, 2, 3, 8])
def test_pairs_hold_rows_of_any_width(width):
    values = np.random.RandomState(width).normal(size=(5, width)).astype(np.float16)
    pairs = np.zeros((5, packed_width(width)), np.float32)
    unpack(pairs, width)[:] = values
    assert pairs.nbytes <= values.nbytes + 5 * 2
    np.testing.assert_array_equal(unpack(pairs.copy(), width), values)


@given(st.integers(1, 5), st.lists(st.floats(-60000, 60000, width=32), min_size=1, max_size=5))
def test_a_channel_gives_back_what_it_rounded(width, values):
    wire_format = WireFormat('embed', np.dtype('float32'), width, (2,), (3,))
    assert wire_format.row_bytes == 2 * width and wire_format.pushed_as == np.float16
    rows = np.tile(np.array(values, np.float32)[:, None], (1, width))
    target = np.empty(rows.shape, wire_format.pushed_as)
    wire_format.narrow(rows, target)
    pairs = np.zeros((len(rows), wire_format.pulled_width), np.float32)
    unpack(pairs, width)[:] = target
    np.testing.assert_array_equal(wire_format.widen(pairs), rows.astype(np.float16))


@pytest.mark.parametrize('dtype', ['float16', 'float32', 'float64'])
def test_a_plain_channel_changes_nothing(dtype):
    wire_format = WireFormat('embed', np.dtype(dtype), 3, (2, 3))
    assert (wire_format.push_keys, wire_format.pushed_as, wire_format.pulled_width) == ((2, 3), np.dtype(dtype), 3)
    assert wire_format.row_bytes == 3 * np.dtype(dtype).itemsize
    rows = np.full((2, 3), np.inf, dtype)
    wire_format.narrow(rows, rows)
    assert wire_format.widen(rows) is rows
