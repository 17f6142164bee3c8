"""Settings reach the compiled kernels as the same floats that MXNet's operators get."""
import random

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mxhybrid.lane.gradient_bucket import DenseUpdate
from mxhybrid.native.dense_rules import Update

pytestmark = pytest.mark.both_pythons

#: The range of floats that MXNet parses: larger and smaller ones are errors there.
LEAST, MOST = 1e-30, 1e30
VALUES = [2.0 ** power for power in range(-90, 90)] + [0.0, 1.0, 1 + 2.0 ** -24, 1 + 3 * 2.0 ** -24, 1e15, 1e16, 1e17,
                                                       123456789012345678.0, 0.00012345678901234567, 9.5e-5, 1 / 3]


def by_operator(value):
    """Return the float that an operator of MXNet gets for a parameter of type float."""
    return mx.nd.clip(mx.nd.zeros(1), a_min=value, a_max=value).asnumpy()[0]


def by_operator_in_list(value):
    """Return the float that an operator gets for a learning rate in a list."""
    weight = mx.nd.zeros(1)
    mx.nd.multi_sgd_update(weight, mx.nd.full(1, -1), lrs=[value], wds=[0.0], out=[weight], num_weights=1)
    return weight.asnumpy()[0]


def by_kernel(value, in_lists):
    """Return the float that a compiled kernel gets for a learning rate."""
    weight = mx.nd.zeros(1)
    update = Update('sgd', {'rescale': 1.0}, [None, None], ([value], [0.0]), in_lists)
    DenseUpdate([weight], update.states, [mx.nd.full(1, -1)]).start(update, 0)
    return weight.asnumpy()[0]


def check(value):
    for sign in (1, -1):
        assert by_kernel(sign * value, False) == by_operator(sign * value), repr(sign * value)
    assert by_kernel(value, True) == by_operator_in_list(value), repr(value)


@settings(max_examples=300)
@given(st.floats(LEAST, MOST))
def test_any_number(value):
    check(value)


@settings(max_examples=300)
@given(st.integers(1, 10 ** 6), st.integers(-12, 3))
def test_short_decimal_numbers(digits, exponent):
    check(float('%de%d' % (digits, exponent)))


@pytest.mark.parametrize('value', VALUES)
def test_numbers_at_the_bounds(value):
    check(value)


def test_most_small_numbers_are_not_the_nearest_float():
    """Otherwise the tests above would not detect a plain conversion to float."""
    drawn = random.Random(1)
    values = [10 ** drawn.uniform(-12, -4) for _ in range(400)]
    assert sum(by_kernel(value, False) != np.float32(value) for value in values) > 50
    assert all(by_kernel(value, True) == np.float32(value) for value in values)
