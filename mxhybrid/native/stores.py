"""MXNet's native KVStores where their public methods do not reach: updaters, commands to servers, a store's end."""
import ctypes
from typing import Any, Callable

from mxnet.base import _LIB, check_call

#: How MXNet calls whoever takes commands (``MXKVStoreServerController``).
_CONTROLLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


def updater_of(store: Any) -> Any:
    """The updater of a store, None without an optimizer."""
    return store._updater


def set_updater(store: Any, updater: Callable[[Any, Any, Any], None]) -> None:
    """Have a store of one process update by a function."""
    store._set_updater(updater)


def send_command(store: Any, head: int, body: str) -> None:
    """Send a command to all servers, and wait until they have carried it out."""
    store._send_command_to_servers(head, body)


def barrier(store: Any) -> None:
    """Wait for all workers that have a native store."""
    store._barrier()


def disown(store: Any) -> Any:
    """Have a store not be freed when Python drops it, which would wait for the servers; returns its handle."""
    handle, store.handle = store.handle, type(store.handle)()
    return handle


def free(handle: Any) -> None:
    """End the native store of a handle; the last of a job ends the servers."""
    check_call(_LIB.MXKVStoreFree(handle))


def serve(store: Any, control: Callable[[int, bytes, Any], None]) -> None:
    """Serve until the workers have all left; `control` is called with head and body of each command of theirs."""
    check_call(_LIB.MXKVStoreRunServer(store.handle, _CONTROLLER(control), None))
