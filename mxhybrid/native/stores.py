"""Private functions of MXNet's native KVStores: updaters, commands to servers, the end of a store."""
import ctypes
from typing import Any, Callable

from mxnet.base import _LIB, check_call

#: The function that takes commands in a server (``MXKVStoreServerController``).
_CONTROLLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


def updater_of(store: Any) -> Any:
    """Return the updater of a store; None without an optimizer."""
    return store._updater


def set_updater(store: Any, updater: Callable[[Any, Any, Any], None]) -> None:
    """Set the function by which a store of one process updates."""
    store._set_updater(updater)


def send_command(store: Any, head: int, body: str) -> None:
    """Send a command to all servers, and wait until they have carried it out."""
    store._send_command_to_servers(head, body)


def barrier(store: Any) -> None:
    """Wait until all workers with a native store call it."""
    store._barrier()


def disown(store: Any) -> Any:
    """Keep Python from freeing a dropped store, which would wait for the servers; return the handle of the store."""
    handle, store.handle = store.handle, type(store.handle)()
    return handle


def free(handle: Any) -> None:
    """Free the native store of a handle; the last one of a job ends the servers."""
    check_call(_LIB.MXKVStoreFree(handle))


def serve(store: Any, control: Callable[[int, bytes, Any], None]) -> None:
    """Serve until all workers have left; `control` is called with head and body of each of their commands."""
    check_call(_LIB.MXKVStoreRunServer(store.handle, _CONTROLLER(control), None))
