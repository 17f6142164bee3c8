"""Records events of this process: spans, instants and operations that end later, in a bounded buffer.

Frequently called code records its work, at almost no cost if the process is not traced::

    with trace.span('merge', parameter=name) as span:
        ...
        span.note(rows=len(ids))

where ``trace`` is a :class:`Recorder`, or :data:`OFF`.  Times are nanoseconds of the system's monotonic clock,
which all processes of a host share; :mod:`mxhybrid.telemetry.trace_sender` brings the events of all processes together.
Their form is Chrome's (Google, "Trace Event Format").
"""
import collections
import itertools
import threading
import time
from typing import Any, Deque, Dict, List, Optional, Union

#: Largest number of events of a process, about 200 bytes each in the file; further events are dropped and counted.
MAX_EVENTS = 200_000

now = time.monotonic_ns


class Off:
    """Records nothing, by the methods of a :class:`Recorder` and of a :class:`Span`."""

    enabled = False

    def span(self, name: str, category: str = '', **args: Any) -> 'Off':
        return self

    def complete(self, name: str, begin: int, end: int, category: str = '', args: Optional[Dict[str, Any]] = None
                 ) -> None:
        """Do nothing."""

    def instant(self, name: str, **args: Any) -> None:
        """Do nothing."""

    def note(self, **args: Any) -> None:
        """Do nothing."""

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
    """The events of this process that were not taken yet; any thread may call every method.

    `name` is the name of this process in the trace, for example ``'worker 3 (host b)'``, `number` its number among the
    workers, or among the servers, which get both late; `limit` is the largest number of events in total, and `dropped`
    counts further events.
    """

    enabled = True

    def __init__(self, name: str, number: int = 0, limit: int = MAX_EVENTS):
        self.name = name
        self.number = number
        self.dropped = 0
        self._left = limit
        self._events: Deque[Dict[str, Any]] = collections.deque()
        self._threads: Dict[int, int] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def span(self, name: str, category: str = '', **args: Any) -> Span:
        """Return a context manager that records its duration."""
        return Span(self, name, category, args)

    def complete(self, name: str, begin: int, end: int, category: str = '', args: Optional[Dict[str, Any]] = None
                 ) -> None:
        """Record an event of this thread from `begin` to `end`."""
        self._add({'ph': 'X', 'name': name, 'cat': category, 'ts': begin, 'dur': end - begin, 'tid': self._thread(),
                   'args': args or {}})

    def instant(self, name: str, **args: Any) -> None:
        """Record an event of this thread at this time."""
        self._add({'ph': 'i', 's': 't', 'name': name, 'ts': now(), 'tid': self._thread(), 'args': args})

    def new_id(self) -> int:
        """Return a number for an operation that ends later, unique in this process."""
        return next(self._numbers)

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
        """Remove and return the oldest `count` events, in Chrome's form, except that times are nanoseconds."""
        return [self._events.popleft() for _ in range(min(count, len(self._events)))]


AnyRecorder = Union[Off, Recorder]


def in_microseconds(events: List[Dict[str, Any]], offset: int) -> List[Dict[str, Any]]:
    """Convert the times of events to Chrome's unit, after adding `offset` nanoseconds."""
    for event in events:
        event['ts'] = 0 if event['ph'] == 'M' else (event['ts'] + offset) / 1000
        if 'dur' in event:
            event['dur'] /= 1000
    return events
