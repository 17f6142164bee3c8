"""Files of parameters as MXNet writes them (``src/ndarray/ndarray.cc``), array by array.

MXNet's own ``nd.save`` and ``nd.load`` need memory for all arrays together.
"""
import ctypes
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
    #: Of its first byte.
    at: int


class ParamsWriter:
    """Writes `count` named arrays into a file that is open."""

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
        size, data = ctypes.c_size_t(), ctypes.c_void_p()
        check_call(_LIB.MXNDArraySaveRawBytes(array.handle, ctypes.byref(size), ctypes.byref(data)))
        self._handle.write(ctypes.string_at(data, size.value))

    def end(self) -> None:
        """Write what stands behind the arrays."""
        self._handle.write(_COUNT.pack(len(self._names)))
        for name in self._names:
            self._handle.write(_COUNT.pack(len(name)) + name)


class ParamsReader:
    """Reads a file that is open as `handle` and is called `fname`; InputError if it is none of named arrays.

    Arrays that are not dense, or of a format of old, are read all together, by MXNet.
    """

    def __init__(self, handle: BinaryIO, fname: str):
        self._handle = handle
        self._whole: Dict[str, Any] = {}
        found = self._index()
        if found is None:
            try:
                self._whole = nd.load(fname)
            except Exception as error:  # MXNetError, or what it makes of bytes that are no text
                raise InputError('%s is no file of parameters: %s'
                                 % (fname, str(error).strip().split('\n')[-1])) from error
            if not isinstance(self._whole, dict):
                raise InputError('%s has arrays without names' % fname)
            found = {name: StoredArray(tuple(array.shape), np.dtype(array.dtype), 0)
                     for name, array in self._whole.items()}
        #: By name.
        self.arrays: Dict[str, StoredArray] = found

    def read(self, name: str, first: int, last: int) -> np.ndarray:
        """Rows of an array; EOFError if the file has become shorter."""
        shape, dtype, at = self.arrays[name]
        rows = (last - first,) + shape[1:]
        if self._whole:
            return row_reader(self._whole[name])(np.arange(first, last, dtype=np.int64)).reshape(rows)
        width = int(np.prod(shape[1:])) * dtype.itemsize
        self._handle.seek(at + first * width)
        data = self._take((last - first) * width)
        return np.frombuffer(data, dtype).reshape(rows)

    def _take(self, size: int) -> bytes:
        data = self._handle.read(size)
        if len(data) < size:
            raise EOFError('the file ends too early')
        return data

    def _index(self) -> Optional[Dict[str, StoredArray]]:
        """Where arrays are; None if MXNet has to read them."""
        try:
            magic, _, count = _FILE.unpack(self._take(_FILE.size))
            if magic != _MAGIC:
                return None
            found = []
            for _ in range(count):
                kind, storage, dimensions = _HEAD.unpack(self._take(_HEAD.size))
                if kind not in _DENSE or storage != 0 or not 0 < dimensions <= 32:
                    return None
                shape = struct.unpack('<%dq' % dimensions, self._take(8 * dimensions))
                _, _, number = _PLACE.unpack(self._take(_PLACE.size))
                dtype = np.dtype(_DTYPE_MX_TO_NP.get(number))
                if dtype.kind not in 'fiub' or number not in _DTYPE_MX_TO_NP or min(shape) < 1:
                    return None
                size = dtype.itemsize
                for length in shape:
                    size *= length
                found.append(StoredArray(shape, dtype, self._handle.tell()))
                self._handle.seek(size, 1)
            names = _COUNT.unpack(self._take(_COUNT.size))[0]
            if names != count:
                return None
            return {self._take(_COUNT.unpack(self._take(_COUNT.size))[0]).decode(): one for one in found}
        except (EOFError, UnicodeDecodeError):
            return None
