"""JSON text: values, malformed text, and nesting that the parser would recurse for."""
import json

import hypothesis
import pytest
from hypothesis import strategies

from mxhybrid.base import json_text

pytestmark = pytest.mark.both_pythons

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
