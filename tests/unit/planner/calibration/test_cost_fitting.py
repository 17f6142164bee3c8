"""Costs and buckets that least squares find in seconds which are made up of them."""
import numpy as np
import pytest
from hypothesis import given, strategies as st

from mxhybrid.planner.calibration.cost_fitting import (
    Sample,
    fit_bucket,
    fit_cost,
    least_squares,
    relative_errors,
    transfer_seconds,
)
from mxhybrid.planner.simulator.token_bucket import TokenBucket

SIZES = [1 << at for at in range(12, 23)]


def samples(fixed, per_item, per_byte, items=(1, 2, 4), sizes=(1e3, 1e5, 1e6)):
    return [Sample(count, size, fixed + per_item * count + per_byte * size) for count in items for size in sizes]


@given(fixed=st.floats(1e-5, 1e-2), per_item=st.floats(1e-5, 1e-2), per_byte=st.floats(1e-10, 1e-8))
def test_a_cost_is_found_in_exact_seconds(fixed, per_item, per_byte):
    cost, left = fit_cost(samples(fixed, per_item, per_byte), 0.25)
    assert [cost.fixed_s, cost.per_item_s, cost.per_byte_s] == pytest.approx([fixed, per_item, per_byte], rel=1e-4)
    assert cost.latency_s == 0.25 and max(left) < 1e-6


@given(st.lists(st.floats(-1e-3, 1e-1), min_size=9, max_size=9))
def test_no_part_of_a_cost_is_negative(seconds):
    found = [one._replace(seconds=value) for one, value in zip(samples(0, 0, 0), seconds)]
    cost, left = fit_cost(found)
    assert min(cost.fixed_s, cost.per_item_s, cost.per_byte_s) >= 0
    assert np.isfinite(left).all()


def test_items_that_do_not_vary_are_part_of_what_is_fixed():
    cost, left = fit_cost(samples(1e-3, 1e-4, 1e-9, items=(4,)))
    assert cost.fixed_s == pytest.approx(1.4e-3) and cost.per_item_s == 0 and max(left) < 1e-9


def test_a_cost_in_noise():
    random = np.random.RandomState(0)
    noisy = [one._replace(seconds=one.seconds * random.uniform(0.9, 1.1)) for one in samples(1e-3, 2e-4, 3e-9)]
    cost, left = fit_cost(noisy)
    assert cost.per_byte_s == pytest.approx(3e-9, rel=0.15) and cost.seconds(2, 1e5) == pytest.approx(1.7e-3, rel=0.1)
    assert 0 < max(left) < 0.15


def test_a_part_that_would_be_negative_is_left_out():
    found = least_squares([(1, 1), (1, 2), (1, 3)], [3, 2, 1])
    assert found[1] == 0 and 1 < found[0] < 3
    assert relative_errors([(1, 1)], [2.0], [1, 2]) == pytest.approx([0.5])


@given(rate=st.floats(1e6, 1e9), faster=st.floats(2, 200), burst=st.floats(5e4, 2e5), latency=st.floats(1e-5, 1e-3))
def test_a_bucket_is_found_in_exact_seconds(rate, faster, burst, latency):
    bucket = TokenBucket(rate, faster * rate, burst)
    found, begins, left = fit_bucket(SIZES, transfer_seconds(bucket, latency, np.array(SIZES)))
    # A size in whose middle the burst ends belongs to neither line.
    assert found.rate == pytest.approx(rate, rel=1e-3) and max(left) < 0.05
    assert found.burst == pytest.approx(burst, rel=0.05) and begins == pytest.approx(latency, rel=0.05)
    assert found.peak > 1.3 * found.rate


def test_a_bucket_in_noise():
    random = np.random.RandomState(1)
    bucket = TokenBucket(11.96e6, 300e6, 78400)
    for _ in range(20):
        seconds = transfer_seconds(bucket, 3e-4, np.array(SIZES)) * random.uniform(1, 1.03, len(SIZES))
        found, _, _ = fit_bucket(SIZES, seconds)
        assert found.rate == pytest.approx(bucket.rate, rel=0.05)
        assert found.burst == pytest.approx(bucket.burst, rel=0.1)


def test_a_way_without_a_burst():
    random = np.random.RandomState(2)
    for _ in range(20):
        seconds = transfer_seconds(TokenBucket(1e9), 1e-4, np.array(SIZES)) * random.uniform(1, 1.05, len(SIZES))
        found, latency, left = fit_bucket(SIZES, seconds)
        assert found.burst == found.peak == 0 and max(left) < 0.1
        assert found.rate == pytest.approx(1e9, rel=0.05) and latency == pytest.approx(1e-4, rel=0.1)
