"""Digests of the files of checkpoints, which find accidental damage, and files that changed places.

They do not protect from a person who changes files on purpose: that person can change the manifest, too.  So speed
decides: XXH3-128 (https://xxhash.com) is about 20 times as fast as BLAKE2b.

The record of a file is ``{'bytes': number of bytes, algorithm: digest in hexadecimal digits}``.  Its key names the
algorithm: 'xxh3_128', or 'blake2b' in checkpoints of earlier versions of mxhybrid.
"""
import hashlib
from typing import Any, Callable, Dict, Union

import xxhash

_ALGORITHMS: Dict[str, Callable[[], Any]] = {
    'xxh3_128': xxhash.xxh3_128, 'blake2b': lambda: hashlib.blake2b(digest_size=32)}
#: The algorithm for new files.
ALGORITHM = 'xxh3_128'


class FileDigest:
    """The digest of bytes that are given in pieces."""

    def __init__(self, algorithm: str = ALGORITHM):
        self._algorithm, self._state, self._size_bytes = algorithm, _ALGORITHMS[algorithm](), 0

    def update(self, data: Union[bytes, memoryview]) -> None:
        """Add bytes."""
        self._state.update(data)
        self._size_bytes += len(data)

    def record(self) -> Dict[str, Any]:
        """Return the record of a file of the bytes so far."""
        return {'bytes': self._size_bytes, self._algorithm: self._state.hexdigest()}


def is_record(value: Any) -> bool:
    """Return whether a JSON value is the record of a file, with a digest of one known algorithm."""
    if not isinstance(value, dict) or len(value) != 2 or not isinstance(value.get('bytes'), int):
        return False
    return (not isinstance(value['bytes'], bool) and value['bytes'] >= 0
            and any(isinstance(value.get(name), str) for name in _ALGORITHMS))


def digest_for(record: Dict[str, Any]) -> FileDigest:
    """Return an empty digest of the algorithm of a record."""
    algorithm, = (name for name in _ALGORITHMS if name in record)
    return FileDigest(algorithm)
