"""The hosts of an elastic job: a fixed list or those that a script prints, without hosts that failed a short time ago.
"""
import contextlib
import os
import signal
import subprocess
import threading
import time
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..base.errors import SettingError
from ..base.log import get_logger

logger = get_logger(__name__)

#: Seconds that a discovery script may take, and between two of its runs.
SCRIPT_S, INTERVAL_S = 10.0, 1.0


class Host(NamedTuple):
    """A host, by the name that its workers are started with, and the number of workers that it may run."""

    name: str
    slots: int


def parse_hosts(words: List[str], slots: int, source: str) -> List[Host]:
    """Return the hosts of words such as ``hostB:2``; without a number a host has `slots` workers.

    SettingError names `source` if a word is no host, or names a host twice.
    """
    hosts: Dict[str, Host] = {}
    for word in words:
        name, colon, count = word.partition(':')
        if not name or colon and not (count.isdigit() and int(count) > 0):
            raise SettingError('%s: %r is not a host: give names with a number of workers, such as hostB:2'
                               % (source, word))
        if name in hosts:
            raise SettingError('%s: host %r is given twice: give it once, with all of its workers' % (source, name))
        hosts[name] = Host(name, int(count) if colon else slots)
    return list(hosts.values())


class Discovery:
    """The hosts that a script prints, one a line; a thread runs it each second.  Without a script, fixed hosts.

    While the script fails, takes too long or prints no host, the last list counts, with a warning.
    """

    def __init__(self, script: str, slots: int, changed: Callable[[], None], fixed: Sequence[Host] = ()):
        self._script, self._slots, self._changed = script, slots, changed
        #: The hosts that the script printed last, or the fixed ones.
        self.hosts: List[Host] = [] if script else list(fixed)
        #: A sentence about the last run of the script, '' if it printed hosts.
        self.problem = ''
        self._closed = threading.Event()
        self._process: Optional['subprocess.Popen[str]'] = None
        self._thread = threading.Thread(target=self._run, name='mxhybrid-discovery', daemon=True)

    def start(self) -> 'Discovery':
        """Run the script once, then begin to run it in a thread."""
        if self._script:
            self._look()
            self._thread.start()
        return self

    def close(self) -> None:
        """Run the script no more, and end it."""
        self._closed.set()
        self._end()

    def _run(self) -> None:
        while not self._closed.wait(INTERVAL_S):
            self._look()

    def _end(self) -> None:
        """End the script with its children, which may hold its output open."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _look(self) -> None:
        problem, hosts = '', self.hosts
        try:
            with subprocess.Popen([self._script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  universal_newlines=True, start_new_session=True) as self._process:
                try:
                    output, _ = self._process.communicate(timeout=SCRIPT_S)
                except subprocess.TimeoutExpired:
                    self._end()
                    raise
            if self._process.returncode:
                problem = 'ended with status %d' % self._process.returncode
            else:
                hosts = parse_hosts(output.split(), self._slots, 'the output')
                problem = '' if hosts else 'printed no host'
        except subprocess.TimeoutExpired:
            problem = 'took more than %g s' % SCRIPT_S
        except (OSError, SettingError, UnicodeDecodeError) as error:
            problem = str(error)
        if problem:
            problem = '--host-discovery-script %s: %s' % (self._script, problem)
            if problem != self.problem and not self._closed.is_set():
                logger.warning('%s: the hosts stay %s', problem, ', '.join(host.name for host in self.hosts) or 'none')
        self.problem = problem
        if not problem and hosts != self.hosts:
            self.hosts = hosts
            self._changed()


class Cooldowns:
    """The hosts that failed, and the time from which each is tried again.

    A host waits the first time for the lower bound of `bounds_s`, then each time for twice as long, up to the upper
    bound.
    """

    def __init__(self, bounds_s: Tuple[float, float], now: Callable[[], float] = time.monotonic):
        self._bounds_s, self._now = bounds_s, now
        self._failures: Dict[str, int] = {}
        self._until: Dict[str, float] = {}

    def add(self, name: str) -> float:
        """Leave a host out for a time; return its seconds."""
        self._failures[name] = self._failures.get(name, 0) + 1
        low, high = self._bounds_s
        pause_s = min(high, low * 2.0 ** min(30, self._failures[name] - 1))
        self._until[name] = self._now() + pause_s
        return pause_s

    def without(self, hosts: List[Host]) -> List[Host]:
        """Return the hosts that are not left out."""
        now = self._now()
        return [host for host in hosts if now >= self._until.get(host.name, now)]

    def next_s(self, hosts: List[Host]) -> Optional[float]:
        """Return the seconds until one of these hosts is tried again; None if none waits."""
        waits = [self._until[host.name] - self._now() for host in hosts if host.name in self._until]
        return min((wait for wait in waits if wait > 0), default=None)


def chosen_slots(hosts: List[Host], least: int, most: int) -> List[Host]:
    """Return the hosts for `most` workers at most, in the given order; none if there is no place for `least`."""
    chosen, count = [], 0
    for host in hosts:
        slots = min(host.slots, most - count)
        if slots > 0:
            chosen.append(Host(host.name, slots))
            count += slots
    return chosen if count >= least else []
