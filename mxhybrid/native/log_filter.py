"""Has MXNet say its remarks on sparse updates where nobody hears them: every process of a job would repeat them.

MXNet says once in each thread that updates of row_sparse gradients are lazy (``LogLazyUpdate`` in
``src/operator/optimizer_op-inl.h``), and once for each operator and its arguments that it works on dense copies of
sparse arrays (``LogStorageFallback`` in ``src/common/utils.h``, ``CopyFromTo`` in ``src/ndarray/ndarray.cc``).  Both
are harmless.  Only the second can be switched off, by a variable that is read when the first such operator is called;
else it says, and keeps, a text for each learning rate.
"""
import contextlib
import os
import tempfile
import threading
from typing import Iterator

from mxnet import ndarray as nd
from mxnet.context import cpu

#: Of MXNet. Whoever sets it to 1 hears all remarks.
VARIABLE = 'MXNET_STORAGE_FALLBACK_LOG_VERBOSE'

#: Of the lines that MXNet may say when it is made to: of copies only where the script has had it read the variable.
_MESSAGES = (b'Optimizer with lazy_update = True detected', b'common/utils.h:', b'fallback detected',
            b'operator = reverse', b'put storage types = [', b'params = {"axis" : 0, }', b'context.dev_mask = ',
            b'The operator with default storage type will be dispatched', b'Copy from default storage type on cpu to ',
            b'A temporary ndarray with row_sparse storage type will be generated')

_thread = threading.local()


def suppress_repeated_logs() -> None:
    """Silence the remarks, those on lazy updates in this thread only, unless the user wants to hear them."""
    given = os.environ.get(VARIABLE)
    if getattr(_thread, 'suppressed', False) or given not in (None, '0'):
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
        if given is None:  # programs that this process starts are none of ours
            del os.environ[VARIABLE]


@contextlib.contextmanager
def _without_lines(*texts: bytes) -> Iterator[None]:
    """Drop lines of standard error that hold one of `texts`; what other threads write meanwhile comes at the end."""
    try:
        screen, aside = open(os.dup(2), 'wb', 0), tempfile.TemporaryFile()
    except OSError:  # it is closed, or there is no place for a file
        yield
        return
    with screen, aside:
        os.dup2(aside.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(screen.fileno(), 2)
            aside.seek(0)
            with contextlib.suppress(OSError):  # whoever reads it may have gone
                screen.writelines(line for line in aside if not any(text in line for text in texts))
