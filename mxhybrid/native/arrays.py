"""NumPy views of MXNet arrays, and row_sparse arrays built without extra copies.

MXNet's own ``RowSparseNDArray.data`` and ``row_sparse_array`` copy the rows once or twice.  The stored rows
of a row_sparse array are one contiguous block (``NDArray::data`` in ``include/mxnet/ndarray.h``), so on the
CPU a NumPy view of that block serves for reading and writing.
"""
import ctypes
import itertools
import math
import operator
import os
from typing import Any, Callable, List

import numpy as np
import xxhash
from mxnet import autograd, ndarray as nd
from mxnet.base import _LIB, NDArrayHandle, check_call, mx_uint
from mxnet.context import cpu
from mxnet.ndarray.sparse import RowSparseNDArray, _new_alloc_handle

#: Device types whose memory the host can address: cpu, cpu_pinned, cpu_shared (``include/mxnet/base.h``).
_HOST_DEVICES = ('cpu', 'cpu_pinned', 'cpu_shared')
#: madvise: the pages' contents are not needed any more (linux/mman.h).
_MADV_DONTNEED = 4
#: dtypes that ps-lite servers of MXNet accept (``MSHADOW_REAL_TYPE_SWITCH`` in kvstore_dist_server.h).
SERVER_DTYPES = (np.float16, np.float32, np.float64)

_decrease_references = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(('Py_DecRef', ctypes.pythonapi))


@nd.ndarray.DeleterFunc
def _release_memory(tensor, decrease_references=_decrease_references):
    """Release the NumPy array whose memory an array of MXNet had."""
    decrease_references(tensor.contents.manager_ctx)


# MXNet's own function needs names of its module, and ends the process by a signal if they are gone: a graph that still
# has such an array is freed when the interpreter exits.  Therefore this function needs none, and lives for ever.
nd.ndarray.dl_managed_tensor_deleter = _release_memory
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_release_memory))


def address_in_memory(array):
    """Return the address of the values of a dense array; does not wait."""
    pointer = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    return pointer.value


def _pointer_view(array, shape, dtype):
    pointer = address_in_memory(array)
    count = math.prod(shape)
    if not count or not pointer:
        return np.empty(shape, dtype)
    raw: Any = (ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(pointer)
    raw.owner = array  # keeps the memory: the view holds `raw`
    return np.frombuffer(raw, dtype=dtype).reshape(shape)


def is_same(objects, others):
    """Return whether two sequences have the same objects, by identity: ``==`` of arrays would compute."""
    return len(objects) == len(others) and all(map(operator.is_, objects, others))


def host_view(array):
    """View a dense array as NumPy: shared memory on the CPU, a copy from any other device.

    The view keeps the memory alive and is valid until `array` is resized.  Waits for pending writes.
    """
    array.wait_to_read()
    return unwritten_view(array) if is_in_host_memory(array.context) else array.asnumpy()


def parts_of(array, shapes):
    """Return arrays of these shapes that lie in an array of one dimension, one after another.

    Nothing must be recorded.  This is a tenth of the Python of slices and ``reshape``.
    """
    parts: List[Any] = []
    first = 0
    for width, group in itertools.groupby(shapes, lambda shape: shape[-1]):
        counts = [math.prod(shape[:-1]) for shape in group]
        last = first + sum(counts) * width
        flat = _slice(array, first, last)
        rows = _reshaped(flat, (sum(counts), width))
        row = 0
        for count in counts:
            part = _slice(rows, row, row + count)
            shape = shapes[len(parts)]
            parts.append(part if len(shape) == 2 else _reshaped(part, shape))
            row += count
        first = last
    return parts


def _slice(array, first, last):
    """Return a part of the first dimension of a dense array, without a record."""
    handle = NDArrayHandle()
    check_call(_LIB.MXNDArraySlice(array.handle, mx_uint(first), mx_uint(last), ctypes.byref(handle)))
    return nd.NDArray(handle)


def _reshaped(array, shape):
    """Return a dense array with another shape, without a record."""
    handle = NDArrayHandle()
    check_call(_LIB.MXNDArrayReshape64(array.handle, len(shape), (ctypes.c_int64 * len(shape))(*shape), False,
                                       ctypes.byref(handle)))
    return nd.NDArray(handle)


def is_in_host_memory(context):
    """Return whether the host can address the arrays of a context."""
    return context.device_type in _HOST_DEVICES


def unwritten_view(array):
    """View a dense array in host memory as NumPy without waiting for the engine's operations on it."""
    return _pointer_view(array, array.shape, array.dtype)


def row_sparse_parts(array):
    """Return the row ids (int64, a copy) and the rows, of shape (n, width), of a row_sparse array.

    On the CPU the rows are a view.
    """
    array.wait_to_read()
    width = math.prod(array.shape[1:])
    indices = array.indices
    if not indices.shape or not indices.shape[0]:
        return np.empty(0, np.int64), np.empty((0, width), array.dtype)
    ids = indices.asnumpy().astype(np.int64, copy=False)
    if not is_in_host_memory(array.context):
        return ids, array.data.asnumpy().reshape(len(ids), width)
    return ids, _pointer_view(array, (len(ids), width), array.dtype)


def allocate_rows(ids, shape, dtype):
    """Make a row_sparse array of `shape` on the CPU that stores the rows `ids` (int64, sorted, unique).

    Returns the array and a writable view of its rows, of shape (n, width).  Fill the view before the engine gets the
    array, or in an operation of the engine that writes it, see :mod:`mxhybrid.native.deliveries`.
    """
    width = math.prod(shape[1:])
    if len(ids) == 0:
        return nd.sparse.zeros('row_sparse', shape, dtype=dtype, ctx=cpu()), np.empty((0, width), dtype)
    array = RowSparseNDArray(_new_alloc_handle('row_sparse', shape, cpu(), False, dtype,
                                               [np.int64], [(len(ids),)]))
    source = nd.empty(len(ids), ctx=cpu(), dtype=np.int64)
    _pointer_view(source, (len(ids),), np.int64)[:] = ids
    check_call(_LIB.MXNDArraySyncCopyFromNDArray(array.handle, source.handle, ctypes.c_int(0)))
    array.wait_to_read()
    return array, _pointer_view(array, (len(ids), width), dtype)


def make_row_sparse(ids, rows, shape):
    """Build a row_sparse array on the CPU from ids (sorted, unique) and rows, which are copied, also rows of zeros."""
    array, view = allocate_rows(ids, shape, rows.dtype)
    view[:] = rows.reshape(view.shape)
    return array


def sum_row_sparse(parts):
    """Sum row_sparse parts, ``[(ids, rows), …]``, to a single ``(ids, rows)`` with ids sorted and unique.

    Rows are added in the order of the parts, so the result is reproducible.  A part may have its ids in any order, and
    an id several times: its rows are then added up first.
    """
    parts = [_merge_repeated(ids, rows) for ids, rows in parts]
    if len(parts) == 1:
        return parts[0]
    union = np.unique(np.concatenate([ids for ids, _ in parts]))
    total = np.zeros((len(union),) + parts[0][1].shape[1:], parts[0][1].dtype)
    for ids, rows in parts:
        total[np.searchsorted(union, ids)] += rows
    return union, total


def _merge_repeated(ids, rows):
    """Sort row ids and add up the rows of repeated ids; return both unchanged if they are sorted and unique."""
    if len(ids) < 2 or bool(np.all(ids[1:] > ids[:-1])):
        return ids, rows
    order = np.argsort(ids, kind='stable')
    ids, rows = ids[order], rows[order]
    first = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
    return (ids, rows) if len(first) == len(ids) else (ids[first], np.add.reduceat(rows, first, axis=0))


def row_reader(array: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that gives rows of an array by id, flattened; rows that are not stored are zeros."""
    if array.stype == 'default':
        return host_view(array).reshape(array.shape[0], -1).__getitem__
    stored_ids, stored_rows = sum_row_sparse([row_sparse_parts(array)])

    def rows_at(ids: np.ndarray) -> np.ndarray:
        if not len(stored_ids):
            return np.zeros((len(ids), stored_rows.shape[1]), stored_rows.dtype)
        positions = np.minimum(np.searchsorted(stored_ids, ids), len(stored_ids) - 1)
        rows = stored_rows[positions]
        rows[stored_ids[positions] != ids] = 0
        return rows

    return rows_at


def padded_row_reader(array: Any, width: int, dtype: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function like :func:`row_reader` that pads rows with zeros to `width`: state as wide as its table."""
    read = row_reader(array)

    def rows_at(ids: np.ndarray) -> np.ndarray:
        rows = read(ids).astype(dtype, copy=False)
        return np.pad(rows, ((0, 0), (0, width - rows.shape[1])))

    return rows_at


def write_rows(array: Any, ids: np.ndarray, rows: Any) -> None:
    """Overwrite rows of a dense array, on any device, after all pending operations of the engine on it."""
    with autograd.pause():
        indices = nd.from_numpy(ids.reshape(1, -1)).as_in_context(array.context)
        values = rows.as_in_context(array.context)
        nd._internal._scatter_set_nd(lhs=array, rhs=values, indices=indices, shape=array.shape, out=array)


def clear(view):
    """Set a contiguous array to zeros, and give its whole pages back to the system: they read as zeros."""
    raw, page = view.reshape(-1).view(np.uint8), os.sysconf('SC_PAGE_SIZE')
    start, end = view.ctypes.data, view.ctypes.data + view.nbytes
    first, last = -(-start // page) * page - start, end // page * page - start
    if first >= last:
        raw[:] = 0
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(start + first), ctypes.c_size_t(last - first), _MADV_DONTNEED):
        raise OSError(ctypes.get_errno(), 'madvise(MADV_DONTNEED) of %d bytes failed' % (last - first))
    raw[:first] = 0
    raw[last:] = 0


def trim_heap():
    """Make the C library, if it can, give freed memory back to the system."""
    trim = getattr(ctypes.CDLL(None), 'malloc_trim', None)  # glibc only
    if trim is not None:
        trim(ctypes.c_size_t(0))


def array_digest(*arrays: Any) -> bytes:
    """Return 16 bytes that are equal for arrays of the same bytes.

    They find accidental differences only.  Large networks are compared at the start of a job, so speed decides, as for
    :mod:`mxhybrid.base.file_digest`.

    - `*arrays`: of any shape and type, which the digest does not contain.
    """
    state = xxhash.xxh3_128()
    for array in arrays:
        state.update(np.ascontiguousarray(array).data)
    return state.digest()
