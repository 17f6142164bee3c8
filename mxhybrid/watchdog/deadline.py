"""A deadline for code that waits in native code, where no exception reaches it."""
import threading
from typing import Any, Callable, Optional

from ..base.settings import variable
from .leaving import ECHO_DELAY_S, leave


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
