"""Continue after operations that failed in MXNet's engine, and whose errors the scripts have caught.

MXNet skips the operations that read the result of a failed one, among them redistributions, and raises the error where
the script waits for such a result.  Two things remain:

- errors that nobody has read: MXNet keeps them, also in the temporary memory that operators share, so that a later
  operation of another network fails with an old error;
- redistributions that wait for a worker which has skipped its part of them.  They never end, and neither does
  ``mx.nd.waitall``.

If they remained on some workers only, later collective calls would fail or wait on some workers only.  So
``parallelize``, which all workers call, discards both.
"""
import threading
import time
from typing import List, Optional

import mxnet as mx

from ...base.errors import JobError
from ...base.log import get_logger
from ...native.last_error import words_of
from .worker_group import WorkerGroup

logger = get_logger(__name__)

#: Seconds that redistributions get to end, once an operation has failed.
PATIENCE_S = 5.0
#: The interval (s) at which a worker looks for redistributions under way.
_INTERVAL_S = 0.05


def recover(workers: WorkerGroup) -> None:
    """Discard errors that scripts have caught, and redistributions that cannot end (collective).

    Networks with such redistributions may not be called again.  Raises JobError on all workers if a redistribution
    cannot end because operations failed on some workers, but not on all.
    """
    failures = workers.allgather(workers.note_failure(), 'failures')
    if any(failures):
        _discard(workers, failures)
    workers.forget_failure()


def _discard(workers: WorkerGroup, failures: List[str]) -> None:
    errors = _PendingErrors() if failures[workers.rank] else None
    numbers = workers.allgather(_numbers_under_way(workers, errors), 'redistributions under way')
    failed = [rank for rank, text in enumerate(failures) if text]
    waiting = [rank for rank, under_way in enumerate(numbers) if under_way]
    if waiting:
        workers.cancel([number for under_way in numbers for number in under_way])
    if errors is not None:
        discarded = errors.discard()
        if discarded:
            logger.warning('parallelize discards errors of operations whose results the script has not read: %s',
                           '; '.join(discarded))
    if waiting and len(failed) < workers.size:
        workers.forget_failure()
        raise JobError('operations failed on %s but not on all workers, and %s for redistributions between layers that '
                       'can no longer be made: %s; start the job again'
                       % (_names(failed), '%s wait%s' % (_names(waiting), 's' * (len(waiting) == 1)),
                          '; '.join('worker %d %s' % (rank, failures[rank]) for rank in failed)))


def _numbers_under_way(workers: WorkerGroup, errors: Optional['_PendingErrors']) -> List[int]:
    """Wait until all operations, or at least all redistributions, are done; return the numbers of those that are not.
    """
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if errors is not None and errors.ended(_INTERVAL_S):
            return []
        if errors is None:
            if not workers.numbers_under_way():
                return []
            time.sleep(_INTERVAL_S)
    return workers.numbers_under_way()


class _PendingErrors:
    """A thread that waits for all operations and takes their errors, since ``mx.nd.waitall`` knows no deadline."""

    def __init__(self) -> None:
        self._texts: List[str] = []
        self._thread = threading.Thread(target=self._wait, name='mxhybrid-errors', daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        while True:
            try:
                mx.nd.waitall()
                return
            except mx.base.MXNetError as error:
                self._texts.append(words_of(error))

    def ended(self, timeout_s: float) -> bool:
        """Return whether all operations end within this time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def discard(self) -> List[str]:
        """Wait for all operations; return the errors that nobody has read.

        No redistribution is missing: the monitor of the job ends a worker that others wait for too long.
        """
        self._thread.join()
        return list(dict.fromkeys(self._texts))


def _names(ranks: List[int]) -> str:
    return 'worker%s %s' % ('s' * (len(ranks) > 1), ', '.join(map(str, ranks)))
