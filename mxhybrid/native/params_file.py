"""Read and write MXNet's files of parameters (``src/ndarray/ndarray.cc``) array by array.

MXNet's own ``nd.save`` and ``nd.load`` need memory for all arrays together.
"""
import ctypes
import math
import struct
from typing import Any, BinaryIO, Dict, Iterable, List, NamedTuple, Optional, Tuple

import numpy as np
from mxnet import nd
from mxnet.base import _LIB, check_call
from mxnet.ndarray.ndarray import _DTYPE_MX_TO_NP, _DTYPE_NP_TO_MX

from ..base.errors import InputError
from .arrays import host_view, row_reader

#: kMXAPINDArrayListMagic, and a word that is reserved.
_FILE = struct.Struct('<QQQ')
_MAGIC = 0x112
#: NDARRAY_V2_MAGIC, NDARRAY_V3_MAGIC; storage type, 0 for dense; dimensions.
_HEAD = struct.Struct('<Iii')
_DENSE = 0xF993fac9, 0xF993faca
#: Device type, its number, type of elements.
_PLACE = struct.Struct('<iii')
_CPU = 1
_COUNT = struct.Struct('<Q')


class StoredArray(NamedTuple):
    """A dense array in a file."""

    shape: Tuple[int, ...]
    dtype: np.dtype
    #: Offset of its first byte in the file.
    offset: int


class ParamsWriter:
    """A writer of `count` named arrays to an open file."""

    def __init__(self, handle: BinaryIO, count: int):
        self._handle = handle
        self._names: List[bytes] = []
        handle.write(_FILE.pack(_MAGIC, 0, count))

    def add(self, name: str, shape: Tuple[int, ...], dtype: Any, pieces: Iterable[np.ndarray]) -> None:
        """Write a dense array, whose `pieces` give its elements in C order."""
        self._names.append(name.encode())
        self._handle.write(_HEAD.pack(_DENSE[0], 0, len(shape)) + struct.pack('<%dq' % len(shape), *shape)
                           + _PLACE.pack(_CPU, 0, _DTYPE_NP_TO_MX[np.dtype(dtype).type]))
        for piece in pieces:
            self._handle.write(np.ascontiguousarray(piece, dtype).reshape(-1).view(np.uint8).data)

    def add_array(self, name: str, array: Any) -> None:
        """Write an array of any kind."""
        if array.stype == 'default':
            self.add(name, array.shape, array.dtype, [host_view(array)])
            return
        self._names.append(name.encode())
        array.wait_to_read()  # MXNet would write the number of rows that the array has before
        size, data = ctypes.c_size_t(), ctypes.c_void_p()
        check_call(_LIB.MXNDArraySaveRawBytes(array.handle, ctypes.byref(size), ctypes.byref(data)))
        self._handle.write(ctypes.string_at(data, size.value))

    def end(self) -> None:
        """Write the names, which follow the arrays."""
        self._handle.write(_COUNT.pack(len(self._names)))
        for name in self._names:
            self._handle.write(_COUNT.pack(len(name)) + name)


class ParamsReader:
    """A reader of the open file `handle` with the name `fname`; InputError if it is not a file of named arrays.

    If an array is not dense, or has an old format, MXNet reads all arrays together.
    """

    def __init__(self, handle: BinaryIO, fname: str):
        self._handle = handle
        self._whole: Dict[str, Any] = {}
        arrays = self._index()
        if arrays is None:
            try:
                self._whole = nd.load(fname)
            except Exception as error:  # MXNetError, or an error about bytes that are not text
                raise InputError('%s is not a file of parameters, as save_parameters writes it: %s'
                                 % (fname, str(error).strip().split('\n')[-1])) from error
            if not isinstance(self._whole, dict):
                raise InputError('%s has arrays without names: give a file that save_parameters has written' % fname)
            arrays = {name: StoredArray(tuple(array.shape), np.dtype(array.dtype), 0)
                      for name, array in self._whole.items()}
        #: Arrays by name.
        self.arrays: Dict[str, StoredArray] = arrays

    def read(self, name: str, first: int, last: int) -> np.ndarray:
        """Return rows of an array; EOFError if the file has become shorter."""
        shape, dtype, offset = self.arrays[name]
        rows = (last - first,) + shape[1:]
        if self._whole:
            return row_reader(self._whole[name])(np.arange(first, last, dtype=np.int64)).reshape(rows)
        width = int(np.prod(shape[1:])) * dtype.itemsize
        self._handle.seek(offset + first * width)
        data = self._take((last - first) * width)
        return np.frombuffer(data, dtype).reshape(rows)

    def _take(self, size: int) -> bytes:
        data = self._handle.read(size)
        if len(data) < size:
            raise EOFError('the file of parameters ends too early: it was cut or overwritten meanwhile')
        return data

    def _index(self) -> Optional[Dict[str, StoredArray]]:
        """Return the arrays and their offsets by name; None if MXNet must read them."""
        try:
            magic, _, count = _FILE.unpack(self._take(_FILE.size))
            if magic != _MAGIC:
                return None
            arrays = []
            for _ in range(count):
                kind, storage, dimensions = _HEAD.unpack(self._take(_HEAD.size))
                if kind not in _DENSE or storage != 0 or not 0 < dimensions <= 32:
                    return None
                shape = struct.unpack('<%dq' % dimensions, self._take(8 * dimensions))
                _, _, number = _PLACE.unpack(self._take(_PLACE.size))
                dtype = np.dtype(_DTYPE_MX_TO_NP.get(number))
                if dtype.kind not in 'fiub' or number not in _DTYPE_MX_TO_NP or min(shape) < 1:
                    return None
                arrays.append(StoredArray(shape, dtype, self._handle.tell()))
                self._handle.seek(dtype.itemsize * math.prod(shape), 1)
            names = _COUNT.unpack(self._take(_COUNT.size))[0]
            if names != count:
                return None
            return {self._take(_COUNT.unpack(self._take(_COUNT.size))[0]).decode(): array for array in arrays}
        except (EOFError, UnicodeDecodeError):
            return None
