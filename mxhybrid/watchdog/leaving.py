"""The one way out of a process that fails, or that native code might not let end.

Exit handlers and native exit barriers would wait for the dead, so such a process ends at once, in this order: what it
has to tell the others, the reason on standard error, the script's output, the end of processes that cannot end by
themselves, a moment for others who have found the same error, the clean-up, and :func:`os._exit`.  The first reason is
the cause: another thread that wants to leave later waits for the end, and says nothing.
"""
import contextlib
import os
import sys
import threading
import time
from typing import Callable, NoReturn, Optional

#: Exit status of a process that ends because it, or another one of its job, failed.
ABORT_STATUS = 1
#: The same of a process that has no other reason than another one's failure, where its launcher looks for the first one
#: that failed: as a shell says that it was ended by SIGTERM.
TOLD_STATUS = 143
#: Seconds that an error which may only be the echo of another process's death waits for the true cause.
ECHO_DELAY_S = 1.0
#: Seconds that a process told to end gets to finish a message of its own: often all workers find the same error.
LAST_WORDS_S = 0.5
#: Seconds after which a process that is to leave has left, whatever holds it up.
LEAVE_S = 10.0
#: Held by the thread that ends this process.
_leaving = threading.Lock()


def leave(text: str = '', last_words: Optional[Callable[[], None]] = None, cleanup: Optional[Callable[[], None]] = None,
          grace: float = 0.0, status: int = ABORT_STATUS, end_others: Callable[[], None] = lambda: None) -> NoReturn:
    """End this process, in :data:`LEAVE_S` at the latest.

    `last_words` tells the job, `text` is said on standard error unless that has been done, `grace` are seconds before
    `cleanup`, which ends what would otherwise wait for ever.  `end_others` comes once the reason is said: this process
    may be the child of one of them, which the kernel ends with it.
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
    """Have this process end whatever holds it up: output that nobody reads, say."""
    def end() -> None:
        try:
            end_others()
        finally:
            os._exit(status)

    timer = threading.Timer(LEAVE_S, end)
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # an interpreter that ends starts no threads
        timer.start()


def _flush() -> None:
    """Have the script's output leave this process, where anybody takes it: its reader may have gone."""
    for stream in (sys.stderr, sys.stdout):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
