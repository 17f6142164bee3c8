"""The storage of MXNet's arrays: whether arrays share it, the layout of its values, and page-locked memory.

Operators of oneDNN keep arrays in layouts of their own. A convolution that runs without ``autograd.record`` pushes an
operation, while it runs, that changes the layout of its weight (``src/operator/nn/mkldnn/mkldnn_convolution.cc``). So
a script cannot know the layout that an array will have when a later operation of the engine runs: the operation itself
must restore the default layout before it writes.

MXNet's C interface has no function for either. The functions of this module use the first member of ``class NDArray``
(``include/mxnet/ndarray.h``), the pointer to the storage, and ``NDArray::Chunk::Reorder2Default``. They check that the
installed build of MXNet has both.
"""
import ctypes
import functools
from typing import Any, Optional, Sequence

import mxnet as mx
from mxnet.base import _LIB

#: The name of ``void mxnet::NDArray::Chunk::Reorder2Default()`` in the shared library.
_REORDER = '_ZN5mxnet7NDArray5Chunk15Reorder2DefaultEv'


def are_separate(arrays: Sequence[Any]) -> bool:
    """Return whether it is certain that no two arrays share their storage, as views do.

    An operation of the engine that writes two such arrays would wait for itself for ever.
    """
    return _is_found() and len({storage_of(array) for array in arrays}) == len(arrays)


def storage_of(array: Any) -> Any:
    """Return the address of the object that owns the storage of an array, which views have in common; does not wait."""
    return ctypes.c_void_p.from_address(array.handle.value).value


@functools.lru_cache(maxsize=None)
def layout_function() -> Optional[Any]:
    """Return the address of the function that restores the default layout, or None if this build of MXNet lacks it.

    Its parameter is a result of :func:`storage_of`. Only an operation of the engine that writes the array may call it.
    """
    function = getattr(_LIB, _REORDER, None)
    return ctypes.cast(function, ctypes.c_void_p) if function is not None and _is_found() else None


@functools.lru_cache(maxsize=None)
def _is_found() -> bool:
    """Return whether :func:`storage_of` tells views of one array from other arrays in this build of MXNet."""
    array, other = [mx.nd.empty(2, ctx=mx.cpu()) for _ in range(2)]
    return bool(storage_of(array) == storage_of(array[1:]) == storage_of(array.reshape((2, 1))) != storage_of(other))


# Page-locked host memory: GPUs copy to and from it at full speed, and while other work goes on.  Source:
# ``cudaHostRegister`` of the CUDA Runtime API.  The functions are those of the runtime that MXNet's library has loaded;
# a build of MXNet for CPUs has none.
_PAGE_BYTES = 4096
#: ``cudaHostRegisterPortable``: the memory is page-locked for all devices of the process.
_PORTABLE = 1


def lock_pages(address: int, size_bytes: int, device: int) -> bool:
    """Lock the pages of ``[address, address + size_bytes)`` for a process that uses the GPU number `device`.

    Return whether they are locked: the system may refuse, for example because of ``ulimit -l``.  Copies are right
    either way.
    """
    register = getattr(_LIB, 'cudaHostRegister', None)
    if register is None:
        return False
    first = address // _PAGE_BYTES * _PAGE_BYTES
    # Otherwise the runtime would allocate a context on GPU 0, which this process may not use.
    if _LIB.cudaSetDevice(device):
        return False
    return not register(ctypes.c_void_p(first), ctypes.c_size_t(address + size_bytes - first), _PORTABLE)


def unlock_pages(address: int) -> None:
    """Unlock the pages that were locked at `address`, before the memory is unmapped."""
    unregister = getattr(_LIB, 'cudaHostUnregister', None)
    if unregister is not None:
        unregister(ctypes.c_void_p(address // _PAGE_BYTES * _PAGE_BYTES))
