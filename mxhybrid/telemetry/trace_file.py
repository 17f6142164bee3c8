"""The one file with the events of all processes, a JSON array in Chrome's trace format.

Events are appended aside, to ``FILE.PID.part``, as they come in, so that neither memory nor a kill loses them; the
whole file takes its place at the end, or, when a disk is full, what came before.  Chrome's format lets a file that was
cut off lack its last bracket.
"""
import contextlib
import json
import os
import threading
from typing import Any, Dict, List, Tuple

from ..base.log import get_logger

logger = get_logger(__name__)

_END = '\n]\n'


class TraceFile:
    """Collects events, in the end at `path`; where that can be opened, a full disk later ends no job."""

    def __init__(self, path: str):
        if os.path.isdir(path):
            raise IsADirectoryError('it is a directory')
        self.path = os.path.abspath(path)
        #: Events so far.
        self.count = 0
        self._aside = '%s.%d.part' % (self.path, os.getpid())
        self._file: Any = open(self._aside, 'w')
        self._file.write('[')
        self._file.flush()  # or a forked child would write it again
        self._size = 1  # of what is whole
        self._separator = '\n'
        self._names: Dict[int, Tuple[str, int]] = {}
        self._lock = threading.Lock()

    def name(self, pid: int, name: str, order: int) -> None:
        """Name a process and say where it is shown among the others; again where either changed."""
        if self._names.get(pid) != (name, order):
            self._names[pid] = (name, order)
            self._write([{'ph': 'M', 'name': 'process_name', 'pid': pid, 'tid': 0, 'ts': 0, 'args': {'name': name}},
                         {'ph': 'M', 'name': 'process_sort_index', 'pid': pid, 'tid': 0, 'ts': 0,
                          'args': {'sort_index': order}}])

    def add(self, pid: int, events: List[Dict[str, Any]]) -> None:
        """Append events of a process; ValueError or TypeError where something is none, or not JSON."""
        for event in events:
            if not (isinstance(event, dict) and isinstance(event.get('ph'), str)
                    and isinstance(event.get('ts'), (int, float))):
                raise ValueError('not an event of a trace: %.100r' % (event,))
            event['pid'] = pid
        self._write(events)
        self.count += len(events)

    def _write(self, events: List[Dict[str, Any]]) -> None:
        text = ''
        separator = self._separator
        for event in events:
            text += separator + json.dumps(event, allow_nan=False)
            separator = ',\n'
        with self._lock:
            if self._file is None or not text:
                return
            try:
                self._file.write(text)
                self._file.flush()
                self._size += len(text)  # JSON as Python writes it is ASCII
                self._separator = separator
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        logger.warning('trace=%r ends here, the job goes on: %s', self.path, error)
        with contextlib.suppress(OSError):
            self._file.close()  # it tries once more to write all
        self._file = None
        with contextlib.suppress(OSError):
            os.truncate(self._aside, self._size)
            os.replace(self._aside, self.path)
            with open(self.path, 'a') as file:
                file.write(_END)

    def close(self) -> bool:
        """Complete the file and move it into place; returns whether this call did."""
        with self._lock:
            if self._file is None:
                return False
            try:
                self._file.write(_END)
                self._file.close()
                os.replace(self._aside, self.path)
            except OSError as error:
                self._give_up(error)
                return False
            self._file = None
            return True

    def discard(self) -> None:
        """Remove what was written, if the file is still open."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                os.remove(self._aside)
                self._file = None
