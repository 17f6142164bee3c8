"""``python -m mxhybrid.servers.scheduler``: the scheduler of ps-lite in a job under ``horovodrun``.

Only :mod:`mxhybrid.job.server_processes` starts it.  It calls MXNet's library without importing MXNet, which would take
longer than all that a scheduler does.
"""
import ctypes
import importlib.util
import os
from typing import Any, List

from ..watchdog.leaving import leave
from .instructions import connect, take_instructions

_CONTROLLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


def library_path() -> str:
    """Return the path of MXNet's library, as its module ``libinfo`` finds it."""
    package = importlib.util.find_spec('mxnet')
    assert package is not None and package.submodule_search_locations is not None
    spec = importlib.util.spec_from_file_location(
        'libinfo', os.path.join(list(package.submodule_search_locations)[0], 'libinfo.py'))
    assert spec is not None and spec.loader is not None
    libinfo: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(libinfo)
    paths: List[str] = libinfo.find_lib_path()
    return paths[0]


def run(library: Any) -> None:
    """Run the scheduler until all other processes have left."""
    def check(status: int) -> None:
        if status:
            library.MXGetLastError.restype = ctypes.c_char_p
            raise RuntimeError(library.MXGetLastError().decode(errors='replace'))

    store = ctypes.c_void_p()
    check(library.MXKVStoreCreate(b'dist', ctypes.byref(store)))
    check(library.MXKVStoreRunServer(store, _CONTROLLER(lambda head, body, _: None), None))  # it gets no commands


def main() -> None:
    """Run the scheduler until all workers have left."""
    library = ctypes.CDLL(library_path())
    lifeline = connect('the scheduler (pid %d)' % os.getpid(), take_instructions())
    run(library)
    leave(last_words=lifeline.bye, status=0)  # a crash of native code at exit would look like a failure


if __name__ == '__main__':
    main()
