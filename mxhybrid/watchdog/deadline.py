"""A deadline for code that waits in native code, where no exception reaches it."""
import threading
from typing import Any, Callable, Optional

from ..base.settings import variable
from .leaving import ECHO_DELAY_S, leave


class Deadline:
    """Context manager that ends the process if its body, which may be stuck in native code, takes too long.

    `waiting_for` completes the sentence "gave up waiting for ..."; `missing` returns a sentence about the processes
    that are missing, '' if they are not known; `tell` sends the message to the other processes before `cleanup`.
    """

    def __init__(self, seconds: float, waiting_for: str, cleanup: Optional[Callable[[], None]] = None,
                 missing: Callable[[], str] = str, tell: Callable[[str], None] = lambda text: None):
        self._text = 'gave up after %g s waiting for %s' % (seconds, waiting_for)
        self._cleanup, self._missing, self._tell = cleanup, missing, tell
        # A moment more than the job monitor waits, which may know the missing process.
        self._timer = threading.Timer(seconds + ECHO_DELAY_S, self._expire)
        self._timer.daemon = True

    def _expire(self) -> None:
        missing = self._missing()
        text = '%s%s: see the output of the other processes for the cause, or raise %s' % (
            self._text, missing and ' (%s)' % missing, variable('timeout'))
        leave(text, lambda: self._tell(text), self._cleanup)

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: Any) -> None:
        self._timer.cancel()
