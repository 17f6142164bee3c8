"""First values of rows of dynamic tables."""
import numpy as np
import pytest
from hypothesis import given, strategies as st

from mxhybrid.base.errors import InputError
from mxhybrid.checkpoint.philox import philox
from mxhybrid.row_store.row_store import FirstValues

from ...helpers.row_stores import first_rows
from ...oracles.philox import first_values, philox4x32

KEYS = st.integers(-1 << 63, (1 << 63) - 1)
SEEDS = st.integers(0, (1 << 64) - 1)


@pytest.mark.parametrize('counter, key, words', [
    ([0] * 4, [0] * 2, [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]),
    ([0xffffffff] * 4, [0xffffffff] * 2, [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]),
    ([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0],
     [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1])])
def test_known_answers_of_random123(counter, key, words):
    assert philox4x32(counter, key) == words
    assert [int(word[0]) for word in philox([np.array([word], np.uint32) for word in counter], key)] == words


@given(st.sampled_from(['zero', 'constant', 'uniform', 'normal']), st.floats(-100, 100), SEEDS, KEYS,
       st.integers(1, 19))
def test_values_are_those_of_the_paper(kind, value, seed, key, width):
    row = first_rows(FirstValues(kind, value, seed), [key], width, 'float64')[0]
    expected = first_values(kind, value, seed, key, width)
    np.testing.assert_allclose(row, expected, rtol=1e-14, atol=1e-300)
    np.testing.assert_array_equal(first_rows(FirstValues(kind, value, seed), [key], width, 'float32')[0],
                                  row.astype(np.float32))


def test_values_have_their_distribution():
    keys = np.arange(20000)
    uniform = first_rows(FirstValues('uniform', 0.5, 3), keys, 8, 'float64')
    assert abs(uniform).max() < 0.5
    np.testing.assert_allclose([uniform.mean(), uniform.std()], [0, 0.5 / 3 ** 0.5], atol=0.003)
    normal = first_rows(FirstValues('normal', 2.0, 3), keys, 8, 'float64')
    np.testing.assert_allclose([normal.mean(), normal.std(), (normal ** 4).mean() / 48], [0, 2, 1], atol=0.03)
    correlations = np.corrcoef(normal.T) - np.eye(8)
    assert abs(correlations).max() < 0.05


@pytest.mark.parametrize('first, message', [
    (FirstValues('xavier', 1.0, 0), "kind 'xavier' is unknown"), (FirstValues('normal', float('nan'), 0), 'not finite'),
    (FirstValues('normal', 1.0, -1), 'seed -1'), (FirstValues('normal', 1.0, 1 << 64), 'seed 18446744073709551616')])
def test_bad_first_values_are_refused(first, message):
    with pytest.raises(InputError, match=message):
        first.for_library()
