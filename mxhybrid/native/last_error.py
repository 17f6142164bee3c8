"""The last error of MXNet that a thread got: MXNet keeps its text for each thread (MXGetLastError of ``c_api.h``)."""
import contextlib
import ctypes
import threading
from typing import Any, Iterator

from mxnet.base import _LIB

_threads = threading.local()


def take_last_error() -> str:
    """Return the words of the last error that MXNet raised in this thread since the last call; '' if there was none."""
    earlier_error, _threads.earlier_error = getattr(_threads, 'earlier_error', ''), ''
    text = _LIB.MXGetLastError()
    if text == getattr(_threads, 'none', b''):
        return earlier_error
    # The same error may come again: overwrite the text by another error, of a graph that is no JSON.
    _LIB.MXSymbolCreateFromJSON(b'mxhybrid', ctypes.byref(ctypes.c_void_p()))
    _threads.none = _LIB.MXGetLastError()
    return words_of(text.decode(errors='replace'))


def words_of(error: Any) -> str:
    """Return the words of an error of MXNet, in one line and without traces of stacks."""
    words = str(error).split('Stack trace:')[0].split('MXNetError: ')[-1]
    return ' '.join(words.split()).rstrip('.')


@contextlib.contextmanager
def expected_errors() -> Iterator[None]:
    """Surround calls of MXNet whose errors :func:`take_last_error` shall not return."""
    before = take_last_error()
    try:
        yield
    finally:
        take_last_error()
        _threads.earlier_error = before
