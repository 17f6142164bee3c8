"""Outlines: the properties that networks of all workers must have in common, line by line; names may differ."""
import hashlib
import json
from typing import Any, List, NamedTuple, Optional


class Line(NamedTuple):
    """An item of an outline."""

    #: The thing that it describes, as ``'operator 3'``.
    what: str
    #: Its name in this process, which is not compared.
    name: str
    value: Any


def digest_of(outline: List[Line]) -> str:
    """Return a text that tells outlines apart."""
    return hashlib.sha256(json.dumps([[line.what, line.value] for line in outline]).encode()).hexdigest()[:16]


def first_difference(everyone: List[Any]) -> Optional[str]:
    """Return a sentence about the first line in which the outlines of all workers, as JSON, differ; None if they are
    equal.
    """
    count = max(map(len, everyone))
    first, *others = [[Line(*line) for line in lines] + [Line('end', '', None)] * (count - len(lines))
                      for lines in everyone]
    for position, line in enumerate(first):
        for rank, lines in enumerate(others, 1):
            other = lines[position]
            if (line.what, line.value) != (other.what, other.value):
                return 'worker 0 has %s, worker %d has %s' % (_words(line, other), rank, _words(other, line))
    return None


def _words(line: Line, other: Line) -> str:
    value = line.value
    if isinstance(value, dict) and isinstance(other.value, dict) and line.what == other.what:
        different = {key: item for key, item in value.items() if other.value.get(key) != item}
        value = {**({'op': value['op']} if 'op' in value else {}), **different}
    name = ' (%s)' % line.name if line.name else ''
    if line.what == 'end':
        return 'nothing more'
    if isinstance(value, dict):
        return '%s%s with %s' % (line.what, name, ', '.join('%s %s' % item for item in value.items()) or 'less')
    return '%s%s %s' % (line.what, name, value)
