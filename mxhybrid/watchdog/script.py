"""Whether the script of this process waits for an array while nothing computes.

An array waits for the operations that write it.  Some of them are exchanges with other workers, in which no Python and
no collective call shows that they are not made.  While they are not, the main thread is in a function of MXNet's, of
Horovod's or of this package's, no thread of the process computes, and nothing is read from or written to a disk.
"""
import os
import sys
import threading
from typing import Any, Optional

from ..base import proc
from .activity import Activity, sample_threads

#: What a worker waits for whose script does.
AN_ARRAY = 'an array'
#: Seconds without a new collective call after which looks begin.
IDLE_S = 3.0
#: Bytes between two looks that a process has from or to a disk at least that reads or writes a file.
_FILE_BYTES = 1 << 16
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class ScriptWatcher:
    """Looks at the main thread once a second."""

    def __init__(self) -> None:
        self._calls, self._since = -1, 0.0
        self._activity = Activity()
        self._moved = 0

    def is_idle(self, calls: int, now: float) -> bool:
        """Return whether the number of collective calls is what it was for a while."""
        if calls != self._calls:
            self._calls, self._since = calls, now
        return now - self._since >= IDLE_S

    def waits_for(self, call: Optional[str], idle: bool) -> Optional[str]:
        """Return what the script waits for, which may be in a collective call; None while it goes on."""
        if call is not None or not idle or not _is_in_libraries():
            self._activity.reset()
            return call
        self._activity.add_sample(sample_threads(os.getpid()))
        former, self._moved = self._moved, proc.disk_bytes()
        return AN_ARRAY if self._activity.is_computing is False and self._moved - former < _FILE_BYTES else None


def _is_in_libraries() -> bool:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frame is not None and frame.f_code.co_filename.startswith(_folders())


def _folders() -> Any:
    found = [_OWN]
    for name in ('mxnet', 'horovod'):
        file = getattr(sys.modules.get(name), '__file__', None)
        if file:
            found.append(os.path.dirname(os.path.abspath(file)))
    return tuple(folder + os.sep for folder in found)
