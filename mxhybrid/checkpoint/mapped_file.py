"""Maps files into memory, without a descriptor for each mapping.

The mappings of Python's `mmap`, and so those of ``numpy.memmap``, keep a descriptor open, of which a process often may
have only 1,024.  A checkpoint with many deltas has more files.
"""
import ctypes
import mmap
import os
import weakref
from typing import Any, Dict

import numpy as np

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value


class _Mapping:
    """The bytes of a file, mapped until the object is released; arrays refer to it."""

    def __init__(self, path: str, size_bytes: int):
        with open(path, 'rb') as file:
            address = _LIBC.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
        if address == _FAILED:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), path)
        self.__array_interface__: Dict[str, Any] = {'shape': (size_bytes,), 'typestr': '|u1', 'data': (address, True),
                                                    'version': 3}
        weakref.finalize(self, _LIBC.munmap, address, size_bytes).atexit = False


def mapped_bytes(path: str) -> np.ndarray:
    """Return the bytes of a file, read-only and mapped; no bytes for an empty file.  OSError if it cannot be mapped."""
    size_bytes = os.path.getsize(path)
    if not size_bytes:  # an empty file cannot be mapped
        return np.empty(0, np.uint8)
    return np.asarray(_Mapping(path, size_bytes))
