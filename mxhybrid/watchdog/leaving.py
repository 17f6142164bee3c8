"""End this process after a failure, also if native code would keep it from ending.

Exit handlers and native exit barriers would wait for dead processes, so such a process ends at once.  It sends its last
messages to the other processes, writes the reason to standard error, flushes the output of the script, kills processes
that cannot end by themselves, waits a moment for processes that have found the same error, cleans up, and calls
:func:`os._exit`, in this order.  The first reason is the cause: a thread that calls :func:`leave` later waits for the
end and writes nothing.
"""
import contextlib
import os
import sys
import threading
import time
from typing import Any, Callable, NoReturn, Optional

from ..base.settings import variable

#: Exit status of a process that ends because it, or another process of its job, failed.
ABORT_STATUS = 1
#: Exit status of a process that ends only because another process failed, under a launcher that looks for the first
#: process that failed: the status that a shell gives to a process that SIGTERM ended.
TOLD_STATUS = 143
#: Seconds to wait for the true cause of an error that may only be a consequence, an echo, of another process's death.
ECHO_DELAY_S = 1.0
#: Seconds for a process that was told to end to finish a message of its own: often all workers find the same error.
LAST_WORDS_S = 0.5
#: Seconds after which a process that called :func:`leave` ends, whatever blocks it.
LEAVE_S = 10.0
#: Most characters of a reason that another process writes in full.
_BRIEF = 200
#: Held by the thread that ends this process.
_leaving = threading.Lock()


def brief(reason: str, writer: str) -> str:
    """Return a reason for messages of all processes but its `writer`: the first words of a long one."""
    if len(reason) <= _BRIEF:
        return reason
    name = writer.partition(' (')[0]
    return '%s ... (in full in the output of %s)' % (reason[:_BRIEF].rpartition(' ')[0],
                                                    'that' + name[1:] if name.startswith('a ') else name)


def leave(text: str = '', last_words: Optional[Callable[[], None]] = None, cleanup: Optional[Callable[[], None]] = None,
          grace: float = 0.0, status: int = ABORT_STATUS, end_others: Callable[[], None] = lambda: None) -> NoReturn:
    """End this process within :data:`LEAVE_S` seconds.

    `last_words` sends messages to the job; `text` is written to standard error, '' if it has been written before;
    `grace` are seconds before `cleanup`, which ends what would otherwise wait for ever.  `end_others` is called once
    the reason is written: this process may be a child of one of the processes that it kills, and end with it.
    """
    try:
        if not _leaving.acquire(blocking=False):
            with contextlib.suppress(Exception):
                end_others()
            time.sleep(LEAVE_S)
        else:
            _end_in_time(status, end_others)
            if last_words is not None:
                with contextlib.suppress(Exception):
                    last_words()
            if text:
                with contextlib.suppress(AttributeError, OSError, ValueError):
                    sys.stderr.write('[mxhybrid] %s\n' % text)
            _flush()
            with contextlib.suppress(Exception):
                end_others()
            time.sleep(grace)
            if cleanup is not None:
                cleanup()
            _flush()
    finally:
        os._exit(status)


def _end_in_time(status: int, end_others: Callable[[], None]) -> None:
    """End this process after a time limit whatever blocks it, for example output that nobody reads."""
    def end() -> None:
        try:
            end_others()
        finally:
            os._exit(status)

    timer = threading.Timer(LEAVE_S, end)
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # an interpreter that is shutting down starts no threads
        timer.start()


def _flush() -> None:
    """Flush the output of the script; its reader may have gone."""
    for stream in (sys.stderr, sys.stdout):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()


class Deadline:
    """Context manager that ends the process if its body, which may be stuck in native code, takes too long.

    `waiting_for` completes the sentence "gave up waiting for ..."; `missing` returns a sentence about the processes
    that are missing, '' if they are not known; `tell` sends the message to the other processes before `cleanup`.
    `extension` returns the seconds by which the time limit grows when it has passed, since processes still arrive; the
    process ends when that is 0.
    """

    def __init__(self, seconds: float, waiting_for: str, cleanup: Optional[Callable[[], None]] = None,
                 missing: Callable[[], str] = str, tell: Callable[[str], None] = lambda text: None,
                 extension: Callable[[], float] = float):
        self._seconds, self._waiting_for = seconds, waiting_for
        self._cleanup, self._missing, self._tell, self._extension = cleanup, missing, tell, extension
        self._has_ended = False
        # A moment more than the job monitor waits, which may know the missing process.
        self._set_timer(seconds + ECHO_DELAY_S)

    def _set_timer(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True

    def _expire(self) -> None:
        extension_s = self._extension()
        if extension_s > 0:
            self._seconds += extension_s
            self._set_timer(extension_s)
            self._timer.start()
            if self._has_ended:
                self._timer.cancel()
            return
        missing = self._missing()
        text = ('gave up after %g s waiting for %s%s: see the output of the other processes for the cause, or raise %s'
                % (self._seconds, self._waiting_for, missing and ' (%s)' % missing, variable('timeout')))
        leave(text, lambda: self._tell(text), self._cleanup)

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: Any) -> None:
        self._has_ended = True
        self._timer.cancel()
