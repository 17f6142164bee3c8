"""Page-locked memory where there is no GPU: nothing is locked, and nothing fails."""
import ctypes

from mxhybrid.native.storage import lock_pages, unlock_pages


def test_without_a_gpu_nothing_is_locked():
    memory = (ctypes.c_char * 10000)()
    assert not lock_pages(ctypes.addressof(memory), len(memory), 0)
    unlock_pages(ctypes.addressof(memory))
