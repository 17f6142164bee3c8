"""The trace file with the events of all processes, a JSON array in Chrome's trace format.

Events are appended to ``FILE.PID.part`` as they arrive, so that memory does not fill, and a kill loses no events.  The
complete file is renamed to its name at the end, or as far as it was written when the disk is full.  Chrome's format
allows a file that was cut off, without its last bracket.
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
    """Collects events for the file `path`; an error of the disk later does not end the job."""

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
        self._size = 1  # bytes of complete events
        self._separator = '\n'
        self._names: Dict[int, Tuple[str, int]] = {}
        self._lock = threading.Lock()

    def name(self, pid: int, name: str, order: int) -> None:
        """Write the name of a process and its position among the others, if either is new."""
        if self._names.get(pid) != (name, order):
            self._names[pid] = (name, order)
            self._write([{'ph': 'M', 'name': 'process_name', 'pid': pid, 'tid': 0, 'ts': 0, 'args': {'name': name}},
                         {'ph': 'M', 'name': 'process_sort_index', 'pid': pid, 'tid': 0, 'ts': 0,
                          'args': {'sort_index': order}}])

    def add(self, pid: int, events: List[Dict[str, Any]]) -> None:
        """Append events of a process; ValueError or TypeError if one is not an event, or not JSON."""
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
        logger.warning('trace=%r is not written any more, the job continues: %s', self.path, error)
        with contextlib.suppress(OSError):
            self._file.close()  # which tries once more to write
        self._file = None
        with contextlib.suppress(OSError):
            os.truncate(self._aside, self._size)
            os.replace(self._aside, self.path)
            with open(self.path, 'a') as file:
                file.write(_END)

    def close(self) -> bool:
        """Complete the file and rename it to its name; return whether this call did that."""
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
        """Remove the incomplete file, if it is still open."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                os.remove(self._aside)
                self._file = None
