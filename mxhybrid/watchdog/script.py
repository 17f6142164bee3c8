"""Detects that the script of this process waits for an array while nothing computes.

An array waits for the operations that write it.  Some of them are exchanges with other workers, and neither Python nor
a collective call shows that such an exchange is stuck.  While it is, the main thread is in a function of MXNet, Horovod
or this package, no thread of the process computes, and nothing is read from or written to a disk.
"""
import os
import sys
import threading
from typing import Any, Optional

from ..base import proc
from .activity import Activity, sample_threads

#: The name, in messages, of an array that a script waits for.
AN_ARRAY = 'an array'
#: Seconds without a new collective call after which sampling begins.
IDLE_S = 3.0
#: Least disk traffic, in bytes between two samples, of a process that reads or writes a file.
_FILE_BYTES = 1 << 16
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class ScriptWatcher:
    """A watcher of the main thread that is called once a second."""

    def __init__(self) -> None:
        self._calls, self._since = -1, 0.0
        self._activity = Activity()
        self._disk_bytes = 0

    def is_idle(self, calls: int, now: float) -> bool:
        """Return whether the number of collective calls has not changed for :data:`IDLE_S` seconds."""
        if calls != self._calls:
            self._calls, self._since = calls, now
        return now - self._since >= IDLE_S

    def waits_for(self, call: Optional[str], idle: bool) -> Optional[str]:
        """Return the collective call or the array for which the script waits; None if it is running."""
        if call is not None or not idle or not _is_in_libraries():
            self._activity.reset()
            return call
        self._activity.add_sample(sample_threads(os.getpid()))
        former_bytes, self._disk_bytes = self._disk_bytes, proc.disk_bytes()
        is_quiet = self._activity.is_computing is False and self._disk_bytes - former_bytes < _FILE_BYTES
        return AN_ARRAY if is_quiet else None


def _is_in_libraries() -> bool:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frame is not None and frame.f_code.co_filename.startswith(_folders())


def _folders() -> Any:
    folders = [_PACKAGE]
    for name in ('mxnet', 'horovod'):
        file = getattr(sys.modules.get(name), '__file__', None)
        if file:
            folders.append(os.path.dirname(os.path.abspath(file)))
    return tuple(folder + os.sep for folder in folders)
