"""Rows and sums as float16: rounding errors, packing, and overflows that are detected."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, strategies as st

from mxhybrid.comm import float16 as wire
from mxhybrid.native.arrays import make_row_sparse

from ...helpers import rounding

#: All float16 values, NaNs included.
EVERY = np.arange(1 << 16, dtype=np.uint16).view(np.float16)

any_float32 = st.floats(allow_nan=False, width=32)


@pytest.mark.parametrize('dtype, setting, travels', [
    ('float32', 'float16', 'float16'), ('float32', 'float32', 'float32'), ('float16', 'float32', 'float16'),
    ('float64', 'float16', 'float64'), ('float16', 'float16', 'float16'), ('int32', 'float16', 'int32')])
def test_only_float32_is_changed(dtype, setting, travels):
    assert wire.dtype_for(dtype, setting) == np.dtype(travels)


def test_finite_is_what_numpy_calls_finite():
    finite = np.isfinite(EVERY)
    assert 0 < finite.sum() < len(EVERY)
    for value, expected in zip(EVERY, finite):
        assert wire.all_finite(np.array([0, value], np.float16)) == expected
    assert wire.all_finite(EVERY[:0])


@given(any_float32)
def test_rounding_and_overflow_are_as_documented(value):
    with np.errstate(over='ignore'):
        half = float(np.float32(value).astype(np.float16))
    if abs(value) <= wire.LARGEST:
        assert abs(half - value) <= rounding.pull_bound(value)
    elif abs(value) >= 65520:  # from half a unit above on
        assert np.isinf(half)


def added(values):
    """Add float16 values one after the other, as several workers do."""
    total = values[0].astype(np.float16)
    for value in values[1:]:
        total = total + value.astype(np.float16)
    return total


@given(st.integers(1, 64), st.sampled_from([1, -1]))
def test_gradients_of_a_safe_magnitude_survive_their_sum(workers, sign):
    largest = np.float32(wire.safe_magnitude(workers) * sign)
    with np.errstate(over='ignore'):
        assert np.isfinite(added([largest] * workers))
        assert np.isinf(added([largest * np.float32(1.1)] * workers))


@given(st.lists(st.floats(-1000, 1000, width=32), min_size=1, max_size=9))
def test_the_bound_of_a_sum_holds(values):
    parts = [np.float32(value) for value in values]
    exact = sum(np.float64(part) for part in parts)
    assert abs(float(added(parts)) - exact) <= rounding.sum_bound([np.float64(part) for part in parts])


@pytest.mark.parametrize('stype', ['default', 'row_sparse'])
def test_magnitudes_of_both_signs_and_no_rows(stype):
    def grad(*rows):
        values = np.array(rows, np.float32).reshape(-1, 2)
        return (mx.nd.array(values) if stype == 'default' and len(values) else
                make_row_sparse(np.arange(len(values)), values, (4, 2)))
    assert not wire.exceeds(grad([1, -2], [0, 2]), 2)
    assert wire.exceeds(grad([1, -2.5], [0, 0]), 2)
    assert wire.exceeds(grad([1, 0], [2.5, 0]), 2)
    assert not wire.exceeds(grad(), 2)
    assert not wire.exceeds(mx.nd.full(2, 9, dtype='float64'), 2)


def test_overflow_is_warned_of_once_by_name(caplog):
    alarm = wire.OverflowAlarm('embed')
    large = np.array([1, 70000, -2], np.float32)
    with np.errstate(over='ignore'):
        alarm.look(np.ones(3, np.float16), 'gradients pushed')
        assert not caplog.messages
        for _ in range(2):
            alarm.look(large.astype(np.float16), 'gradients pushed', large)
    message, = caplog.messages
    assert 'embed: gradients pushed' in message and '65504' in message


def test_earlier_infinities_are_ignored(caplog):
    already = np.array([np.inf, np.nan, -np.inf], np.float32)
    wire.OverflowAlarm('embed').look(already.astype(np.float16), 'gradients pushed', already)
    assert not caplog.messages


def test_a_sum_travels_as_float16_and_lands_in_place():
    seen = []

    def allreduce_(array, tag, priority):
        seen.append((array.dtype, tag, priority))
        array *= 2  # two workers with the same gradient
    half_sum = wire.HalfSum(wire.OverflowAlarm('layer'))
    values = np.array([[1 / 3, -2049.0], [1e-9, 4.0]], np.float32)
    for _ in range(2):
        gradient = mx.nd.array(values)
        half_sum.allreduce_(gradient, allreduce_, 'tag', -3)
        np.testing.assert_array_equal(gradient.asnumpy(), 2 * values.astype(np.float16).astype(np.float32))
        assert gradient.dtype == np.float32
    assert seen == [(np.float16, 'tag', -3)] * 2
