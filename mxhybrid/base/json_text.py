"""JSON text that another program may have written: its values are never nested deeply."""
import json
import re
from typing import Any, Callable, Optional, Union

#: The most lists and dicts inside of each other.
MAX_DEPTH = 100

_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"?')
_BRACKETS = re.compile(r'[][{}]')


def parse(text: Union[bytes, str], parse_int: Optional[Callable[[str], int]] = None) -> Any:
    """Return the value of JSON text; ValueError if it is malformed, or nested more than `MAX_DEPTH` deep.

    The depth is checked first: the parser recurses for each level, and CPython 3.8 may end the process where recursion
    goes too deep.
    """
    if isinstance(text, bytes):
        text = text.decode()
    depth = 0
    for bracket in _BRACKETS.findall(_STRINGS.sub('', text)):
        depth += 1 if bracket in '[{' else -1
        if depth > MAX_DEPTH:
            raise ValueError('it is nested more than %d levels deep' % MAX_DEPTH)
    return json.loads(text, parse_int=parse_int)
