"""What small calls need of MXNet's arrays, each by one compiled call, ``src/row_arrays.h``.

What is not small, or of another kind than most, these functions leave to others: they return None.
"""
import ctypes
import functools
from typing import Any, Optional, Tuple

import numpy as np

from ..native.engine import function_address, operator_handle
from .kernels import compiled

#: Row ids of a call that count as few.
FEW_IDS = 4096
#: Bytes of rows that count as few: they are copied twice more, which takes less than what is saved.
FEW_BYTES = 64 << 10
#: Bytes of a table up to which gradients may be read as raw bytes, for which MXNet keeps memory in each thread.
_MOST_BYTES = 16 << 20

#: MXNet's numbers of the dtypes that tables have.
_DTYPES = {np.dtype(np.float32): 0, np.dtype(np.float64): 1, np.dtype(np.float16): 2}
#: The functions of ``struct MxnetFunctions``, in order.
_FUNCTIONS = ('MXNDArrayGetStorageType', 'MXNDArrayGetDType', 'MXNDArrayGetContext', 'MXNDArrayGetShapeEx64',
              'MXNDArrayGetData', 'MXNDArraySaveRawBytes', 'MXNDArrayLoadFromRawBytes', 'MXNDArrayFree',
              'MXEnginePushAsyncND', 'MXImperativeInvokeEx')


@functools.lru_cache(maxsize=None)
def mxnet_functions() -> Any:
    """``struct MxnetFunctions`` for compiled functions."""
    addresses = [function_address(name) for name in _FUNCTIONS] + [operator_handle(b'_copyto')]
    return (ctypes.c_void_p * len(addresses))(*[address.value for address in addresses])


def read_few_ids(ids: Any, rows: int) -> Optional[np.ndarray]:
    """Sorted and unique int64 ids, all rows of a table, of an NDArray of few row ids."""
    library = compiled()
    if library is None:
        return None
    ids.wait_to_read()
    found = np.empty(FEW_IDS, np.int64)
    count = library.read_row_ids(mxnet_functions(), ids.handle, rows, FEW_IDS, address_of_memory(found))
    return None if count < 0 else found[:count].copy()


def read_few_rows(gradient: Any, rows: int, width: int, dtype: np.dtype, most: int) -> Optional[Tuple[np.ndarray,
                                                                                              np.ndarray]]:
    """Ids, all rows of a table and sorted, and rows, of shape (n, width), of a row_sparse array of at most so many."""
    row_bytes, library = width * dtype.itemsize, compiled()
    if library is None or dtype not in _DTYPES or not 0 < most * row_bytes <= FEW_BYTES \
            or rows * row_bytes > _MOST_BYTES:
        return None
    gradient.wait_to_read()
    ids, values = np.empty(most, np.int64), np.empty((most, width), dtype)
    count = library.read_rows(mxnet_functions(), gradient.handle, rows, width, _DTYPES[dtype], most,
                              address_of_memory(ids), address_of_memory(values))
    return None if count < 0 else (ids[:count], values[:count])


def address_of_memory(array: Any) -> int:
    """Where the values of an array that may be written are; sooner said than by ``array.ctypes.data``."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array))
