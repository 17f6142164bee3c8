"""Access to small arrays of MXNet, in one compiled call each, ``src/worker/row_arrays.h``.

The functions return None for arrays that are not small or are of an unusual kind; the caller then takes the general
way.
"""
import ctypes
import functools
from typing import Any, Optional, Tuple

import numpy as np

from ..kernels.library import compiled
from ..native.engine import function_address, operator_handle
from . import library

#: The most row ids of a call that count as few.
FEW_IDS = 4096
#: The most bytes of rows that count as few: two more copies of them cost less than the call saves.
FEW_BYTES = 64 << 10
#: The largest table, in bytes, whose gradients are read as raw bytes, for which MXNet keeps memory in each thread.
_MAX_TABLE_BYTES = 16 << 20

#: MXNet's numbers of the dtypes of tables.
_DTYPES = {np.dtype(np.float32): 0, np.dtype(np.float64): 1, np.dtype(np.float16): 2}
#: The functions of ``struct MxnetFunctions``, in order.
_FUNCTIONS = ('MXNDArrayGetStorageType', 'MXNDArrayGetDType', 'MXNDArrayGetContext', 'MXNDArrayGetShapeEx64',
              'MXNDArrayGetData', 'MXNDArraySaveRawBytes', 'MXNDArrayLoadFromRawBytes', 'MXNDArrayFree',
              'MXEnginePushAsyncND', 'MXImperativeInvokeEx')


@functools.lru_cache(maxsize=None)
def mxnet_functions() -> Any:
    """Return ``struct MxnetFunctions`` of ``kernels/src/operators/mxnet_api.h``."""
    addresses = [function_address(name) for name in _FUNCTIONS] + [operator_handle(b'_copyto')]
    return (ctypes.c_void_p * len(addresses))(*[address.value for address in addresses])


def read_few_ids(ids: Any, rows: int) -> Optional[np.ndarray]:
    """Return the sorted distinct row ids in an NDArray as int64; None if there are many or one is not in the table."""
    if compiled() is None:
        return None
    ids.wait_to_read()
    result = np.empty(FEW_IDS, np.int64)
    count = library.load().read_row_ids(mxnet_functions(), ids.handle, rows, FEW_IDS, address_of_memory(result))
    return None if count < 0 else result[:count].copy()


def read_few_rows(gradient: Any, rows: int, width: int, dtype: np.dtype, max_rows: int) -> Optional[Tuple[np.ndarray,
                                                                                              np.ndarray]]:
    """Return the sorted ids and the rows, of shape (n, width), of a row_sparse array of at most `max_rows` rows."""
    row_bytes = width * dtype.itemsize
    if compiled() is None or dtype not in _DTYPES or not 0 < max_rows * row_bytes <= FEW_BYTES \
            or rows * row_bytes > _MAX_TABLE_BYTES:
        return None
    gradient.wait_to_read()
    ids, values = np.empty(max_rows, np.int64), np.empty((max_rows, width), dtype)
    count = library.load().read_rows(mxnet_functions(), gradient.handle, rows, width, _DTYPES[dtype], max_rows,
                                            address_of_memory(ids), address_of_memory(values))
    return None if count < 0 else (ids[:count], values[:count])


def address_of_memory(array: Any) -> int:
    """Return the address of a writable array's values; faster than ``array.ctypes.data``."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array))
