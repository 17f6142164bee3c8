"""Signals end the benchmark at once, or, while jobs and networks exist, where the benchmark waits.

A signal that is ignored when the benchmark starts stays so: nohup, or a job in a script's background.
"""
import contextlib
import ctypes
import os
import signal
import sys
from typing import Any, Dict, Iterator, Optional

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
#: Environment variable with the process id of the benchmark.
PARENT = 'MXHYBRID_BENCH_PARENT'


def die_with_parent() -> None:
    """Make the kernel end this process when the benchmark dies, however it dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ[PARENT]):
        sys.exit('the benchmark that started this process is gone')


class Interrupted(BaseException):
    """A signal asked the benchmark to end."""

    def __init__(self, number: int):
        super().__init__('interrupted by %s' % signal.Signals(number).name)
        self.number = number


class Signals:
    """A context manager: the first signal ends its block with `Interrupted`, and no other disturbs the cleaning up."""

    def __init__(self) -> None:
        self._before: Dict[int, Any] = {}
        self._number: Optional[int] = None
        self._deferred = False

    def __enter__(self) -> 'Signals':
        for number in _SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: Any) -> None:
        for each in self._before:
            signal.signal(each, signal.SIG_IGN)
        self._number = number
        if not self._deferred:
            raise Interrupted(number)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """A block that a signal cannot leave by itself, as it would in the middle of cleaning up: `check` does."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
        self.check()

    def check(self) -> None:
        """Raise `Interrupted` if a signal came."""
        if self._number is not None:
            raise Interrupted(self._number)
