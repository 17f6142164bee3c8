"""Keys of dynamic tables from strings, integers and tuples of them."""
import struct
from typing import Any

import xxhash

from ..base.errors import InputError


def hash_key(*parts: Any) -> int:
    """Return a key of :class:`HashEmbedding`, a 64-bit hash of the parts.

    The key is the same in every process, on every machine and in later versions of mxhybrid.  It is XXH3-64 with seed 0
    (https://xxhash.com) of these bytes, read as a signed integer.  Integers have 8 bytes, little-endian:

    =========  =====================================================================
    part       bytes
    =========  =====================================================================
    int        ``i``, then the number
    str        ``s``, then the number of bytes of its UTF-8, then these bytes
    bytes      ``b``, then their number, then the bytes
    tuple      ``t``, then the number of its items, then the bytes of each item
    =========  =====================================================================

    Parameters
    ----------
    *parts : int, str, bytes or tuple
        For example the name of a feature and its value: ``hash_key('city', 'Paris')``.  Keys of two features of
        one table differ by the name.

    Returns
    -------
    int
        From -2^63 to 2^63 - 1.

    Raises
    ------
    InputError
        A part has another type, or an int has more than 64 bits.

    Notes
    -----
    Two different values may have the same key.  Such a collision is not detected: both values then have one row.  The
    probability that any two of n values collide is about n^2 / 2^65: 3e-6 for 10^7 values, 3 % for 10^9.
    """
    if not parts:
        raise InputError('hash_key: give at least one int, str, bytes or tuple')
    number = xxhash.xxh3_64_intdigest(b''.join(map(_encoded, parts)))
    return number - (1 << 64) if number >= 1 << 63 else number


def _encoded(part: Any) -> bytes:
    if isinstance(part, str):
        data = part.encode()
        return b's' + struct.pack('<q', len(data)) + data
    if isinstance(part, bytes):
        return b'b' + struct.pack('<q', len(part)) + part
    if isinstance(part, tuple):
        return b't' + struct.pack('<q', len(part)) + b''.join(map(_encoded, part))
    if not _is_integer(part):
        raise InputError('hash_key: %r is a %s: give int, str, bytes or tuples of them; write a float as text, whose '
                         'digits you choose' % (part, type(part).__name__))
    if not -(1 << 63) <= int(part) < 1 << 63:
        raise InputError('hash_key: %d has more than 64 bits: give it as a str' % part)
    return b'i' + struct.pack('<q', int(part))


def _is_integer(part: Any) -> bool:
    return not isinstance(part, bool) and hasattr(part, '__index__') and getattr(part, 'shape', ()) == ()
