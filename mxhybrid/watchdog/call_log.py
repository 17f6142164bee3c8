"""Log the last collective calls of a worker by number, to find the first call in which workers differ.

All workers make the same collective calls in the same order.  When they wait for each other for too long, the cause is
the first number that has different calls in their logs.
"""
import threading
from collections import Counter, deque
from typing import Any, Deque, Dict, List, NamedTuple, Optional

#: Most calls that a log keeps.
MAX_CALLS = 256


class RecentCalls(NamedTuple):
    """A range of calls: the number of the first one, counted from 1, and the names of all."""

    first: int
    names: List[str]

    @property
    def last(self) -> int:
        """The number of the last call."""
        return self.first + len(self.names) - 1


class CallLog:
    """The number of collective calls that this worker has made, and the names of the last of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: Deque[str] = deque(maxlen=MAX_CALLS)
        self._times: Dict[str, int] = Counter()
        self.count = 0

    def add(self, name: str) -> None:
        """Count a call."""
        with self._lock:
            self.count += 1
            self._names.append(name)
            self._times[name] += 1

    def times(self, name: str) -> int:
        """Return how often a call of this name was made."""
        return self._times.get(name, 0)

    def recent(self) -> RecentCalls:
        """Return the calls that are kept."""
        with self._lock:
            return RecentCalls(self.count - len(self._names) + 1, list(self._names))


def checked_calls(value: Any) -> RecentCalls:
    """Return a range of calls that another process sent as JSON; TypeError or ValueError if it is not one."""
    first, names = value
    return RecentCalls(int(first), [str(name) for name in names])


def difference_of_calls(logs: Dict[int, Optional[RecentCalls]]) -> str:
    """Return a sentence about the first call that differs between the logs of the ranks; '' if none differs."""
    known = {rank: log for rank, log in sorted(logs.items()) if log is not None}
    if len(known) < 2:
        return ''
    first, last = max(log.first for log in known.values()), min(log.last for log in known.values())
    for number in range(first, last + 1):
        calls = {rank: log.names[number - log.first] for rank, log in known.items()}
        if len(set(calls.values())) > 1:
            return 'the first difference is call number %d: %s' % (
                number, ', '.join('worker %d made %s' % item for item in calls.items()))
    return ''
