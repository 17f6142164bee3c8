"""Files in NumPy's .npy format, version 1.0: written in pieces, mapped when they are read."""
import ast
import ctypes
import math
import mmap
import os
import struct
import weakref
from typing import Any, ContextManager, Dict, Optional, Tuple

import numpy as np

#: First bytes of a file of version 1.0 (numpy.lib.format).
_MAGIC = b'\x93NUMPY\x01\x00'
#: Bytes of a header that this module writes: enough for a shape of two 64-bit counts.
_HEADER_BYTES = 128
#: Bytes of a header that this module reads.
_MAX_HEADER_BYTES = 1 << 16

#: Bytes that are written together from which on the disk starts to write them at once, so that little is left for the
#: end; the constant is that of sync_file_range(2), an error of which has no consequence.
_STARTED_BYTES, _SYNC_FILE_RANGE_WRITE = 1 << 18, 2


class FormatError(ValueError):
    """The content of a file is not an array of the expected kind; the message goes after the name of the file."""


def header(dtype: np.dtype, shape: Tuple[int, ...]) -> bytes:
    """Return the first :data:`_HEADER_BYTES` bytes of a file that holds an array in C order."""
    fields = {'descr': np.lib.format.dtype_to_descr(dtype), 'fortran_order': False, 'shape': shape}
    text = repr(fields).encode()
    return (_MAGIC + struct.pack('<H', _HEADER_BYTES - 10) + text).ljust(_HEADER_BYTES - 1) + b'\n'


class ArrayWriter(ContextManager['ArrayWriter']):
    """Writes an array whose number of rows is known only at the end; a context manager.

    `width` is the number of elements of a row, None for an array of one dimension.
    """

    def __init__(self, path: str, dtype: Any, width: Optional[int] = None):
        self._dtype, self._width = np.dtype(dtype), width
        self.rows = 0
        self._file = open(path, 'xb')
        self._file.write(header(self._dtype, self._shape()))

    def __exit__(self, kind: Any, *exception: Any) -> None:
        with self._file:
            if kind is None:
                self._file.seek(0)
                self._file.write(header(self._dtype, self._shape()))

    def _shape(self) -> Tuple[int, ...]:
        return (self.rows,) if self._width is None else (self.rows, self._width)

    def append(self, rows: np.ndarray) -> None:
        """Write further rows."""
        rows = np.ascontiguousarray(rows, self._dtype)
        if rows.shape[1:] != self._shape()[1:]:
            raise ValueError('rows of shape %s do not continue an array of shape %s' % (rows.shape, self._shape()))
        begin = self._file.tell()
        self._file.write(rows.reshape(-1).view(np.uint8).data)
        if rows.nbytes >= _STARTED_BYTES:
            self._file.flush()
            _LIBC.sync_file_range(self._file.fileno(), begin, rows.nbytes, _SYNC_FILE_RANGE_WRITE)
        self.rows += len(rows)


def mapped(path: str) -> np.ndarray:
    """Return the array of a file, read-only and mapped; FormatError if the file holds none, or a pickled one."""
    with open(path, 'rb') as file:
        start = file.read(10)
        if start[:6] != _MAGIC[:6]:
            raise FormatError('is not a .npy file')
        if start[6] == 1 and len(start) == 10:
            length = struct.unpack('<H', start[8:10])[0]
        else:  # version 2 and 3 have a longer length
            length = struct.unpack('<I', (start[8:10] + file.read(2)).ljust(4, b'\0'))[0]
        if length > _MAX_HEADER_BYTES:
            raise FormatError('has a header of %d bytes, more than %d' % (length, _MAX_HEADER_BYTES))
        text, offset = file.read(length), file.tell()
    try:
        fields = ast.literal_eval(text.decode('latin1'))
        dtype, shape, in_columns = np.dtype(fields['descr']), fields['shape'], fields['fortran_order']
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise FormatError('has a header that cannot be read: %s' % error) from error
    if dtype.hasobject or not isinstance(shape, tuple) or not all(isinstance(size, int) and size >= 0
                                                                  for size in shape):
        raise FormatError('does not hold an array of numbers: dtype %s, shape %s' % (dtype, shape))
    elements = math.prod(shape)
    if os.path.getsize(path) < offset + elements * dtype.itemsize:
        raise FormatError('has %d bytes, too few for %s elements of %s' % (os.path.getsize(path), shape, dtype))
    if not elements:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, mapped_bytes(path), offset, order='F' if in_columns else 'C')


# The mappings of Python's `mmap`, and so those of ``numpy.memmap``, keep a descriptor open, of which a process often
# may have only 1,024.  A checkpoint with many deltas has more files.
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
_LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value


class _Mapping:
    """The bytes of a file, mapped until the object is released; arrays refer to it."""

    def __init__(self, path: str):
        size_bytes = os.path.getsize(path)
        with open(path, 'rb') as file:
            address = _LIBC.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
        if address == _FAILED:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), path)
        self.__array_interface__: Dict[str, Any] = {'shape': (size_bytes,), 'typestr': '|u1', 'data': (address, True),
                                                    'version': 3}
        weakref.finalize(self, _LIBC.munmap, address, size_bytes).atexit = False


def mapped_bytes(path: str) -> np.ndarray:
    """Return the bytes of a file, read-only and mapped; OSError if it cannot be mapped, as an empty file cannot."""
    return np.asarray(_Mapping(path))


def release(array: np.ndarray) -> None:
    """Take the pages of a mapped array, whose elements are adjacent, out of the memory of this process.

    A later access finds them in the page cache, or reads them again.  An array that is not mapped stays as it is.
    """
    base = array.base
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, _Mapping) and array.nbytes:
        begin = array.__array_interface__['data'][0]
        first = begin // mmap.PAGESIZE * mmap.PAGESIZE
        _LIBC.madvise(first, (begin + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first, mmap.MADV_DONTNEED)
