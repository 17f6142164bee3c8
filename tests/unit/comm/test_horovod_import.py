"""Horovod's library, and the libraries that it needs, export no symbols to other modules of the process."""
import ctypes
import importlib

import mxhybrid  # noqa: F401


def test_symbols_of_mxnet_stay_local():
    importlib.import_module('horovod.mxnet')
    seen_by_all = ctypes.CDLL(None)
    for symbol in ('MXGetVersion', 'jpeg_CreateDecompress', 'png_create_read_struct', 'inflate', 'cblas_sgemm',
                   'horovod_mxnet_allreduce_async'):
        assert not hasattr(seen_by_all, symbol), symbol
