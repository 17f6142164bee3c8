"""The manifest of a checkpoint: JSON, which is checked before it is used."""
import hashlib
import json
import math
from typing import Any, Dict

from ..base import json_text
from ..base.errors import InputError
from ..base.file_digest import is_record
from . import folder

#: Largest size of a shard, in bytes, that a reader accepts.
MAX_SHARD_BYTES = 1 << 30
#: Most decimal digits of an integer; CPython 3.8 takes quadratic time for more.
MAX_DIGITS = 4000

DTYPES = ('float64', 'float32', 'float16', 'int64', 'int32', 'int8', 'uint8', 'bool')


def digest(content: Any) -> str:
    """Return the digest of the content of a manifest, by which deltas refer to their base."""
    text = json.dumps(content, sort_keys=True, separators=(',', ':'))
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def plain(value: Any, name: str) -> Any:
    """Return a JSON value as it will be read, with keys of dicts as strings; InputError if it is not a JSON value."""
    try:
        return read_json(json.dumps(value).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError('%s is not a JSON value: %s. Give numbers, strings, True, False, None, and lists and dicts of '
                         'them; arrays as lists' % (name, error)) from error


def read_json(data: bytes) -> Any:
    """Return the value of JSON text; ValueError if it is not JSON, or nested deeply."""
    return json_text.parse(data, parse_int=_bounded_int)


def _bounded_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError('an integer of %d digits' % len(digits))
    return int(digits)


def is_count(value: Any) -> bool:
    """Return whether a JSON value is an integer of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def flaw(content: Dict[str, Any]) -> str:
    """Return the error in the entries of a manifest for arrays and shards, '' if there is none."""
    base = content.get('base')
    if base is not None and not (isinstance(base, dict) and isinstance(base.get('name'), str)
                                 and isinstance(base.get('blake2b'), str)):
        return 'has a wrong entry for its base'
    oldest_base = content.get('oldest_base')
    if base is not None and not (isinstance(oldest_base, str) and folder.NAME.fullmatch(oldest_base)):
        return 'has a wrong entry for its oldest base'
    step, shards, arrays = content.get('step'), content.get('shards'), content.get('arrays')
    if not is_count(step):
        return 'has no step'
    if not isinstance(content.get('saved_at'), (int, float)):
        return 'has a wrong time'
    if not isinstance(shards, list) or not isinstance(arrays, dict):
        return 'lists no shards or no arrays'
    for number, shard in enumerate(shards):
        if not (is_record(shard) and shard['bytes'] <= MAX_SHARD_BYTES):
            return 'has a wrong entry for shard %d' % number
    for name, entry in arrays.items():
        if not (isinstance(entry, dict) and entry.get('dtype') in DTYPES and isinstance(entry.get('shape'), list)
                and all(map(is_count, entry['shape'])) and isinstance(entry.get('pieces'), list)):
            return 'has a wrong entry for %r' % name
        position = 0
        for piece in entry['pieces']:
            if not (isinstance(piece, list) and len(piece) == 3 and all(map(is_count, piece))
                    and piece[0] < len(shards) and piece[1] == position < piece[2]):
                return 'has a wrong piece of %r' % name
            position = piece[2]
        if position != math.prod(entry['shape']):
            return 'has pieces of %r that do not make its shape' % name
    return ''
