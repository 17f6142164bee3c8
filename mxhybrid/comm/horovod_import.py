"""Import ``horovod.mxnet`` without showing the symbols of MXNet's libraries to other modules.

Horovod 0.28.1 loads its library with RTLD_GLOBAL (``horovod/common/basics.py``, ``horovod/mxnet/mpi_ops.py``).  The
system then shows all symbols of ``libmxnet.so`` to all modules that are imported later: PIL, for example, calls the
libjpeg that is linked into MXNet, in place of its own, and can read and write no JPEG.
"""
import ctypes
import importlib.machinery
import sys
from typing import Any

from ..base.errors import SettingError

_INSTALL = ('HOROVOD_WITH_MXNET=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 pip install --no-build-isolation '
            '--no-cache-dir --force-reinstall horovod==0.28.1')


def load_horovod() -> Any:
    """Import ``horovod.mxnet``; SettingError where Horovod is missing or was built without MXNet."""
    try:
        import horovod.mxnet as hvd
    except ImportError as error:
        raise SettingError('Horovod with MXNet support is not installed (%s). Install MXNet first, then run: %s'
                           % (error, _INSTALL)) from error
    return hvd


def keep_symbols_local() -> None:
    """Load Horovod's library with RTLD_LOCAL from now on, also if the script imports it."""
    if not any(isinstance(finder, _HorovodFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _HorovodFinder())


class _HorovodFinder(importlib.machinery.PathFinder):
    """Finder of ``horovod.mxnet`` alone, during whose import RTLD_GLOBAL means RTLD_LOCAL."""

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Return the specification of ``horovod.mxnet``; None for all other modules."""
        spec = super().find_spec(fullname, path, target) if fullname == 'horovod.mxnet' else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_locally(module: Any) -> None:
            former, ctypes.RTLD_GLOBAL = ctypes.RTLD_GLOBAL, ctypes.RTLD_LOCAL
            try:
                execute(module)
            finally:
                ctypes.RTLD_GLOBAL = former

        spec.loader.exec_module = execute_locally  # type: ignore[method-assign]
        return spec
