"""Page-locked host memory: GPUs copy to and from it at full speed, and while other work goes on.

Source: ``cudaHostRegister`` of the CUDA Runtime API.  The functions are those of the runtime that MXNet's library has
loaded; a build of MXNet for CPUs has none.
"""
import ctypes
from typing import Any, Callable, Optional

from mxnet.base import _LIB

_PAGE_BYTES = 4096
#: ``cudaHostRegisterPortable``: the memory is page-locked for all devices of the process.
_PORTABLE = 1


def lock_pages(address: int, size_bytes: int, device: int) -> bool:
    """Lock the pages of ``[address, address + size_bytes)`` for a process that uses the GPU number `device`.

    Return whether they are locked: the system may refuse, for example because of ``ulimit -l``.  Copies are right
    either way.
    """
    register = _runtime('cudaHostRegister')
    if register is None:
        return False
    first = address // _PAGE_BYTES * _PAGE_BYTES
    # Otherwise the runtime would allocate a context on GPU 0, which this process may not use.
    if _LIB.cudaSetDevice(device):
        return False
    return not register(ctypes.c_void_p(first), ctypes.c_size_t(address + size_bytes - first), _PORTABLE)


def unlock_pages(address: int) -> None:
    """Unlock the pages that were locked at `address`, before the memory is unmapped."""
    unregister = _runtime('cudaHostUnregister')
    if unregister is not None:
        unregister(ctypes.c_void_p(address // _PAGE_BYTES * _PAGE_BYTES))


def _runtime(name: str) -> Optional[Callable[..., Any]]:
    """Return a function of CUDA's runtime; None without one."""
    return getattr(_LIB, name, None)
