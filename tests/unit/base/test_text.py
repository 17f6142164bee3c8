"""Text: numbers and tables for people, and JSON that is malformed or nested deeply."""
import json

import hypothesis
import pytest
from hypothesis import strategies

from mxhybrid.base import json_text
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
    assert aligned(['name', 'count'], []) == 'name  count\n----  -----'


VALUES = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.text(),
    lambda inner: strategies.lists(inner) | strategies.dictionaries(strategies.text(), inner))


@hypothesis.given(VALUES)
def test_values_are_those_of_json(value):
    assert json_text.parse(json.dumps(value)) == value
    assert json_text.parse(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.parametrize('text', [
    '[' * 100000, '[1,' * 100000, '{"a":' * 100000, '[{"a":' * 60, '["' + '\\"' * 3 + '",' + '[' * 101, b'\xff', '',
    '{', '"['],
    ids=lambda text: repr(text[:10]))
def test_malformed_and_deep_text_is_refused(text, monkeypatch):
    monkeypatch.setattr(json, 'loads', _without_recursion(json.loads))
    with pytest.raises(ValueError):
        json_text.parse(text)


def _without_recursion(loads):
    def checked(text, **keywords):
        assert text.count('[') + text.count('{') <= json_text.MAX_DEPTH, 'the parser would recurse'
        return loads(text, **keywords)
    return checked


def test_brackets_of_strings_are_no_levels():
    value = ['[' * 1000, '"[{' * 1000, '\\"[' * 1000, {'[' * 1000: [[]] * 1000}]
    assert json_text.parse(json.dumps(value)) == value
    deepest = '[' * json_text.MAX_DEPTH + ']' * json_text.MAX_DEPTH
    assert json.dumps(json_text.parse(deepest)) == deepest
