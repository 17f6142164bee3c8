"""Filter log lines of MXNet about sparse updates, which every process of a job would repeat.

MXNet logs, once in each thread, that updates of row_sparse gradients are lazy (``LogLazyUpdate`` in
``src/operator/optimizer_op-inl.h``), and, once for each operator and its arguments, that it works on dense copies of
sparse arrays (``LogStorageFallback`` in ``src/common/utils.h``, ``CopyFromTo`` in ``src/ndarray/ndarray.cc``).  Both
are harmless.  Only the second can be switched off, by a variable that is read when the first such operator is called;
otherwise MXNet logs, and keeps, a line for each learning rate.  The first is provoked while standard error is filtered.
"""
import contextlib
import os
import tempfile
import threading
from typing import Iterator

from mxnet import ndarray as nd
from mxnet.context import cpu

#: A variable of MXNet; users who set it to 1 see all lines.
VARIABLE = 'MXNET_STORAGE_FALLBACK_LOG_VERBOSE'

#: Parts of the lines to drop; lines about copies appear only if the script made MXNet read the variable before.
_MESSAGES = (b'Optimizer with lazy_update = True detected', b'common/utils.h:', b'fallback detected',
            b'operator = reverse', b'put storage types = [', b'params = {"axis" : 0, }', b'context.dev_mask = ',
            b'The operator with default storage type will be dispatched', b'Copy from default storage type on cpu to ',
            b'A temporary ndarray with row_sparse storage type will be generated')

_thread = threading.local()


def suppress_repeated_logs() -> None:
    """Suppress the lines, those about lazy updates in this thread only, unless the user has asked for them."""
    former = os.environ.get(VARIABLE)
    if getattr(_thread, 'suppressed', False) or former not in (None, '0'):
        return
    _thread.suppressed = True
    os.environ[VARIABLE] = '0'
    try:
        with _without_lines(*_MESSAGES):
            rows = nd.ones((1, 1), ctx=cpu()).tostype('row_sparse')
            nd.reverse(rows, axis=0)
            nd.ones((1, 1), ctx=cpu()).copyto(rows)
            nd.sgd_mom_update(rows, rows, rows.copy(), out=rows, lr=0.0, momentum=0.5)
    finally:
        if former is None:  # programs that this process starts must not inherit it
            del os.environ[VARIABLE]


@contextlib.contextmanager
def _without_lines(*texts: bytes) -> Iterator[None]:
    """Drop lines of standard error with one of `texts`; lines of other threads inside the block come at the end."""
    try:
        screen, aside = open(os.dup(2), 'wb', 0), tempfile.TemporaryFile()
    except OSError:  # standard error is closed, or no file can be made
        yield
        return
    with screen, aside:
        os.dup2(aside.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(screen.fileno(), 2)
            aside.seek(0)
            with contextlib.suppress(OSError):  # its reader may have gone
                screen.writelines(line for line in aside if not any(text in line for text in texts))
