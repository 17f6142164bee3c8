"""What happened when in this process: spans, instants and operations that end later, in a bounded buffer.

Hot code says what it does, and pays next to nothing where nothing is recorded::

    with trace.span('merge', parameter=name) as span:
        ...
        span.note(rows=len(ids))

where ``trace`` is a :class:`Recorder`, or :data:`OFF`.  Times are nanoseconds of the system's monotonic clock,
which all processes of a host share; :mod:`mxhybrid.telemetry.trace_sender` brings the events of all processes together.
Their form is Chrome's (Google, "Trace Event Format").
"""
import collections
import threading
import time
from typing import Any, Deque, Dict, List, Optional, Union

#: Events that a process records at most, about 200 bytes each in the file; the others are dropped and counted.
MAX_EVENTS = 200_000

now = time.monotonic_ns


class Off:
    """Records nothing."""

    enabled = False

    def span(self, name: str, category: str = '', **args: Any) -> 'Off':
        """A context manager that does nothing."""
        return self

    def complete(self, name: str, begin: int, end: int, category: str = '', args: Optional[Dict[str, Any]] = None
                 ) -> None:
        """Nothing."""

    def instant(self, name: str, **args: Any) -> None:
        """Nothing."""

    def note(self, **args: Any) -> None:
        """Nothing."""

    def __enter__(self) -> 'Off':
        return self

    def __exit__(self, *_: Any) -> None:
        pass


#: The recorder of a process that is not traced.
OFF = Off()


class Span:
    """A context manager whose duration becomes an event."""

    __slots__ = ('_recorder', '_name', '_category', '_args', '_begin')

    def __init__(self, recorder: 'Recorder', name: str, category: str, args: Dict[str, Any]):
        self._recorder, self._name, self._category, self._args = recorder, name, category, args

    def note(self, **args: Any) -> None:
        """Add arguments to the event."""
        self._args.update(args)

    def __enter__(self) -> 'Span':
        self._begin = now()
        return self

    def __exit__(self, *_: Any) -> None:
        self._recorder.complete(self._name, self._begin, now(), self._category, self._args)


class Recorder:
    """The events of this process that nobody took yet; every method may be called by any thread.

    `name` is how the trace calls this process, for example ``'worker 3 (host b)'``, `number` which one it is among the
    workers, or among the servers, and `limit` how many events it records at most, in all; `dropped` counts the others.
    """

    enabled = True

    def __init__(self, name: str, number: int = 0, limit: int = MAX_EVENTS):
        self.name = name
        self.number = number
        self.dropped = 0
        self._left = limit
        self._events: Deque[Dict[str, Any]] = collections.deque()
        self._threads: Dict[int, int] = {}
        self._count = 0
        self._lock = threading.Lock()

    def rename(self, name: str, number: int) -> None:
        """A server learns late which one it is."""
        self.name, self.number = name, number

    def span(self, name: str, category: str = '', **args: Any) -> Span:
        """A context manager whose body's duration is recorded."""
        return Span(self, name, category, args)

    def complete(self, name: str, begin: int, end: int, category: str = '', args: Optional[Dict[str, Any]] = None
                 ) -> None:
        """Record what this thread did from `begin` to `end`."""
        self._add({'ph': 'X', 'name': name, 'cat': category, 'ts': begin, 'dur': end - begin, 'tid': self._thread(),
                   'args': args or {}})

    def instant(self, name: str, **args: Any) -> None:
        """Record that something happened now in this thread."""
        self._add({'ph': 'i', 's': 't', 'name': name, 'ts': now(), 'tid': self._thread(), 'args': args})

    def new_id(self) -> int:
        """A number for an operation that ends later, unique in this process."""
        with self._lock:
            self._count += 1
            return self._count

    def begin(self, name: str, number: int, category: str, args: Dict[str, Any]) -> None:
        """Record that operation `number` begins now; it may end in another thread."""
        self._add({'ph': 'b', 'name': name, 'cat': category, 'id2': {'local': str(number)}, 'ts': now(), 'tid': 0,
                   'args': args})

    def end(self, name: str, number: int, category: str) -> None:
        """Record that operation `number` ends now."""
        self._add({'ph': 'e', 'name': name, 'cat': category, 'id2': {'local': str(number)}, 'ts': now(), 'tid': 0})

    def _thread(self) -> int:
        ident = threading.get_ident()
        number = self._threads.get(ident)
        if number is None:
            with self._lock:
                number = self._threads[ident] = len(self._threads)
            self._add({'ph': 'M', 'name': 'thread_name', 'ts': 0, 'tid': number,
                       'args': {'name': threading.current_thread().name}})
        return number

    def _add(self, event: Dict[str, Any]) -> None:
        with self._lock:
            if self._left <= 0:
                self.dropped += 1
                return
            self._left -= 1
        self._events.append(event)

    def __len__(self) -> int:
        return len(self._events)

    def take(self, count: int) -> List[Dict[str, Any]]:
        """Remove and return the oldest `count` events, in Chrome's form but for times in nanoseconds."""
        taken: List[Dict[str, Any]] = []
        while self._events and len(taken) < count:
            taken.append(self._events.popleft())
        return taken


AnyRecorder = Union[Off, Recorder]


def in_microseconds(events: List[Dict[str, Any]], offset: int) -> List[Dict[str, Any]]:
    """Bring the times of events to Chrome's unit, after adding `offset` nanoseconds."""
    for event in events:
        event['ts'] = 0 if event['ph'] == 'M' else (event['ts'] + offset) / 1000
        if 'dur' in event:
            event['dur'] /= 1000
    return events
