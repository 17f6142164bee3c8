"""Digests of the files of checkpoints, which find accidental damage, and files that changed places.

They do not protect from a person who changes files on purpose: that person can change the manifest, too.  So speed
decides: XXH3-128 (https://xxhash.com) is about 20 times as fast as BLAKE2b.

The record of a file is ``{'bytes': number of bytes, 'xxh3_128': digest in hexadecimal digits}``.
"""
from typing import Any, Dict, Union

import xxhash


class FileDigest:
    """The digest of bytes that are given in pieces."""

    def __init__(self) -> None:
        self._state, self._size_bytes = xxhash.xxh3_128(), 0

    def update(self, data: Union[bytes, memoryview]) -> None:
        self._state.update(data)
        self._size_bytes += len(data)

    def record(self) -> Dict[str, Any]:
        """Return the record of a file of the bytes so far."""
        return {'bytes': self._size_bytes, 'xxh3_128': self._state.hexdigest()}


def is_record(value: Any) -> bool:
    """Return whether a JSON value is the record of a file."""
    if not isinstance(value, dict) or set(value) != {'bytes', 'xxh3_128'}:
        return False
    size_bytes = value['bytes']
    return (isinstance(size_bytes, int) and not isinstance(size_bytes, bool) and size_bytes >= 0
            and isinstance(value['xxh3_128'], str))
