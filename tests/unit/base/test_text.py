"""Numbers and tables for people: units, alignment."""
import pytest

from mxhybrid.base.text import aligned, seconds_text, size_text

pytestmark = pytest.mark.both_pythons


@pytest.mark.parametrize('count, text', [
    (0, '0 B'), (1, '1 B'), (999, '999 B'), (1000, '1.0 kB'), (1500, '1.5 kB'), (10 ** 6, '1.0 MB'),
    (2.5e6, '2.5 MB'), (3 * 10 ** 9, '3.0 GB'), (5 * 10 ** 13, '50000.0 GB'), (0.4, '0 B'),
])
def test_sizes_in_powers_of_1000(count, text):
    assert size_text(count) == text


@pytest.mark.parametrize('seconds, text', [
    (0, '0 ms'), (0.0123456, '12.3 ms'), (0.999, '999 ms'), (1, '1 s'), (75.04, '75 s')])
def test_times(seconds, text):
    assert seconds_text(seconds) == text


def test_columns_are_aligned_text_left_numbers_right():
    assert aligned(['name', 'n'], [['a', '1'], ['longer', '1000']]).split('\n') == [
        'name       n',
        '------  ----',
        'a          1',
        'longer  1000']


def test_a_table_without_rows_has_its_head():
    assert aligned(['name', 'count'], []) == 'name  count\n----  -----'
