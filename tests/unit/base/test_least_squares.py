"""Least squares with bounds: exact data, and the conditions of Karush, Kuhn and Tucker for noisy data."""
import numpy as np
import pytest
from hypothesis import given, strategies as st

from mxhybrid.base.least_squares import nonnegative_least_squares

numbers = st.floats(-10, 10).map(lambda value: round(value, 3))
matrices = st.integers(1, 4).flatmap(lambda columns: st.lists(
    st.lists(numbers, min_size=columns, max_size=columns), min_size=columns, max_size=8))


@pytest.mark.parametrize('coefficients', [(1e-3, 2e-4, 3e-9), (0, 2e-4, 3e-9), (1e-3, 0, 0), (0, 0, 0)])
def test_exact_data_give_their_coefficients(coefficients):
    matrix = np.array([(1, items, size) for items in (1, 2, 4) for size in (1e3, 1e5, 1e6)], float)
    found = nonnegative_least_squares(matrix, matrix @ coefficients)
    np.testing.assert_allclose(found, coefficients, rtol=1e-6, atol=1e-18)
    assert (found[np.array(coefficients) == 0] == 0).all()


def test_only_unbounded_columns_may_be_negative():
    matrix, values = [(1, 1), (1, 2), (1, 3)], [-5, -4, -3]
    assert nonnegative_least_squares(matrix, values, unbounded=[0]) == pytest.approx([-6, 1])
    assert (nonnegative_least_squares(matrix, values) == 0).all()
    found = nonnegative_least_squares(matrix, [3, 2, 1])
    assert found == pytest.approx([2, 0]) and found[1] == 0


@given(matrices, st.data())
def test_no_coefficient_can_be_improved(rows, data):
    matrix = np.array(rows)
    values = np.array(data.draw(st.lists(numbers, min_size=len(rows), max_size=len(rows))))
    found = nonnegative_least_squares(matrix, values)
    assert (found >= 0).all()
    slope = matrix.T @ (matrix @ found - values)
    scale = 1e-6 * (1 + np.abs(matrix).sum() * (np.abs(values).sum() + np.abs(matrix @ found).sum()))
    assert (slope >= -scale).all() and (np.abs(slope[found > 0]) <= scale).all()
