"""Beats over the lifelines: each end knows that the other one lives, and the monitor knows where every worker is.

A process that is stopped, a host that hangs and a link that is cut close no connection.  So every process sends a
beat a second from its lifeline's thread, and the monitor answers each.  Who hears nothing for too long draws its
conclusion: the monitor ends the job and names the silent ones; a process that misses the monitor ends itself.

Silence is counted on a clock that stands still while its own process does not run, or a process that was stopped,
swapped out or suspended would find all others silent when it goes on.

The beat of a worker also says how many calls that need everybody it has made, and where its script is.  When the
others wait for one that is alive but elsewhere, worker 0 says so, and in the end gives up.
"""
import contextlib
import os
import signal
import socket
import sys
import sysconfig
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from .log import get_logger

logger = get_logger(__name__)

#: Seconds between two beats.
BEAT_S = 1.0

#: Of the time between two looks at a clock, what counts at most: beyond it the process did not run.
AWAKE_S = 2.0

#: Seconds beyond the limit after which silence is reported: others may follow, and all are named together.
GATHER_S = 2.0

#: Where no script of a user lives.
_LIBRARIES = tuple(os.path.join(path, '') for path in sorted({
    os.path.dirname(os.path.abspath(__file__)), sysconfig.get_paths()['stdlib'], sysconfig.get_paths()['purelib'],
    sysconfig.get_paths()['platlib']}))


class Limits(NamedTuple):
    """After how many seconds the monitor acts.

    Attributes
    ----------
    start : float
        On a process that does not come.
    silence : float
        On a process from which nothing is heard; a warning about a worker for which the others wait.
    stall : float
        On such a worker; 0 for never.
    """

    start: float = 120.0
    silence: float = 60.0
    stall: float = 600.0


class AwakeClock:
    """Seconds during which this process ran, by the looks that it took at the clock."""

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._last = now()
        self.seconds = 0.0

    def look(self) -> float:
        """Go on; returns the seconds since the start."""
        now = self._now()
        self.seconds += min(max(0.0, now - self._last), AWAKE_S)
        self._last = now
        return self.seconds


# ------------------------------------------------------------------------------------------ processes


def introduction() -> Dict[str, Any]:
    """What others need to know of this process to look at it, and to end it, from the same machine."""
    return {'pid': os.getpid(), 'host': socket.gethostname(), 'place': _place(), 'started': _stat(os.getpid())[1]}


def _place() -> str:
    """Where process ids have the same meaning."""
    with open('/proc/sys/kernel/random/boot_id') as file:
        return '%s %s %s' % (socket.gethostname(), file.read().strip(), os.readlink('/proc/self/ns/pid'))


def _stat(pid: int) -> Tuple[str, str]:
    """State of a process and when it started (proc(5)), both empty if it is gone."""
    try:
        with open('/proc/%d/stat' % pid) as file:
            values = file.read().rpartition(')')[2].split()
        return values[0], values[19]
    except (OSError, IndexError):
        return '', ''


def state_of(process: Optional[Dict[str, Any]]) -> str:
    """State letter of a process that introduced itself; empty if it is gone, or runs where this one cannot see it."""
    if process is None or process['place'] != _place():
        return ''
    state, started = _stat(int(process['pid']))
    return state if started == process['started'] else ''


def end_process(process: Optional[Dict[str, Any]]) -> None:
    """Kill a silent process of this machine, which could not leave by itself."""
    if process is not None and process['pid'] != os.getpid() and state_of(process) not in ('', 'Z'):
        with contextlib.suppress(OSError):
            os.kill(int(process['pid']), signal.SIGKILL)


def end_processes(processes: Any) -> None:
    """Kill those of the silent processes that run on this machine."""
    for process in processes:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            end_process(process)


def place_of_script() -> str:
    """Where the main thread is: the innermost line outside of libraries, as ``'train.py:81 in main'``."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    innermost = ''
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        # Of code that no line of the source stands for, such as the clean-up behind a `with` block, the line is None.
        line = '?' if frame.f_lineno is None else frame.f_lineno
        text = '%s:%s%s' % (os.path.basename(file), line, '' if name == '<module>' else ' in ' + name)
        if not file.startswith(_LIBRARIES) and not file.startswith('<frozen'):
            return text
        innermost, frame = innermost or text, frame.f_back
    return innermost


# ------------------------------------------------------------------------------------------ in every process


class Pulse:
    """The beats of one process, and how long it has missed the monitor's.

    Parameters
    ----------
    limit : float
        Seconds of silence that count until the monitor says its own limit.
    is_worker : bool
    """

    def __init__(self, limit: float, is_worker: bool):
        self._limit = limit
        self._is_worker = is_worker
        self._clock = AwakeClock()
        self._heard = self._beaten = 0.0
        self._introduced = False
        #: Who the monitor is, once it has answered.
        self.monitor: Optional[Dict[str, Any]] = None

    def due(self) -> bool:
        """Whether it is time for a beat."""
        now = self._clock.look()
        if self._introduced and now - self._beaten < BEAT_S:
            return False
        self._beaten = now
        return True

    def beat(self, calls: int, call: str, waiting: Optional[str], busy: bool = False) -> Dict[str, Any]:
        """The message: what this process has done and where it is."""
        beat: Dict[str, Any] = {}
        if self._is_worker:
            beat = {'calls': calls, 'call': call, 'waiting': waiting, 'busy': busy, 'at': place_of_script()}
        if not self._introduced:
            beat['me'], self._introduced = introduction(), True
        return beat

    def heard(self) -> None:
        """The monitor said something."""
        self._heard = self._clock.seconds

    def answered(self, answer: Dict[str, Any]) -> None:
        """The monitor answered a beat."""
        self._limit = float(answer['limit'])
        self.monitor = answer.get('me') or self.monitor

    def death(self) -> str:
        """What to say when the connection is closed: who stopped it may have been ended for that by another process."""
        return self.silence(self._limit / 2) or 'worker 0, which watches the job, died without a word'

    def silence(self, early: float = 0.0) -> Optional[str]:
        """What to say if the monitor has been silent for too long, less `early` seconds, else None."""
        seconds = self._clock.look() - self._heard
        if seconds <= self._limit - early:
            return None
        cause = {'T': 'it is stopped, by a signal or a debugger', 't': 'a debugger holds it',
                 'D': 'it hangs in the kernel'}.get(state_of(self.monitor))
        return 'worker 0, which watches the job, has said nothing for %.0f s: %s' % (
            seconds, cause or 'it is stopped, a host hangs, or the network between it and this process is cut')


# ------------------------------------------------------------------------------------------ beside the monitor


class Life:
    """What the monitor knows of one process."""

    def __init__(self, now: float):
        self.heard = now
        self.process: Optional[Dict[str, Any]] = None
        self.calls = 0
        self.call = self.at = ''
        #: Whether the others wait for it with good reason, while it writes a checkpoint, say.
        self.busy = False
        #: Since when the others wait for this worker, and how long until the next warning.
        self.missed_since: Optional[float] = None
        self.patience = 0.0

    @property
    def host(self) -> str:
        """Name of its host."""
        return '' if self.process is None else str(self.process['host'])


class Verdict(NamedTuple):
    """Why the job must end, and the processes that cannot leave by themselves."""

    text: str
    silent: List[Dict[str, Any]]


class Vigil:
    """Keeps watch over all processes for the monitor, in its thread.

    Parameters
    ----------
    workers : int
        How many will come.
    limits : Limits
    now : callable, optional
        A clock in seconds.
    """

    def __init__(self, workers: int, limits: Limits, now: Callable[[], float] = time.monotonic):
        self._workers = workers
        self._limits = limits
        self._clock = AwakeClock(now)
        self._me: Dict[str, Any] = introduction()
        self._came: List[int] = []
        #: Servers and scheduler by place and process id: names, and since when those that did not come are missed.
        self._children: Dict[Tuple[str, int], str] = {}
        self._awaited: Dict[Tuple[str, int], float] = {}
        self._introduced: Set[Tuple[str, int]] = set()

    def joined(self, who: Dict[str, Any]) -> None:
        """A process has connected."""
        who['life'] = Life(self._clock.seconds)
        if who['rank'] >= 0:
            self._came.append(who['rank'])

    def heard(self, who: Dict[str, Any]) -> None:
        """A process has said something."""
        who['life'].heard = self._clock.seconds

    def beat(self, who: Dict[str, Any], beat: Dict[str, Any]) -> Dict[str, Any]:
        """A process beats; returns the answer."""
        life: Life = who['life']
        answer: Dict[str, Any] = {'limit': self._limits.silence}
        if 'me' in beat:
            life.process = dict(beat['me'])
            introduced = (str(life.process['place']), int(life.process['pid']))
            self._introduced.add(introduced)
            self._awaited.pop(introduced, None)
            answer['me'] = self._me
        if who['rank'] >= 0:
            calls, busy = int(beat['calls']), bool(beat.get('busy'))
            if (calls, busy) != (life.calls, life.busy):
                life.missed_since = None
            life.calls, life.call, life.at, life.busy = calls, str(beat['call']), str(beat['at']), busy
        return {'beat': answer}

    def expect(self, who: Dict[str, Any], children: List[List[Any]]) -> None:
        """A worker has started processes, given as ``[role, pid]``."""
        parent = who['life'].process
        for role, pid in children:
            child = (str(parent['place']), int(pid))
            self._children[child] = 'the %s with pid %d on host %s' % (role, pid, parent['host'])
            if child not in self._introduced:  # it may be faster than its parent's message
                self._awaited[child] = self._clock.seconds

    def has_parent(self, who: Dict[str, Any]) -> bool:
        """Whether a worker started this process and will learn how it ended."""
        process = who['life'].process
        return process is not None and (process['place'], process['pid']) in self._children

    def look(self, peers: List[Dict[str, Any]]) -> Optional[Verdict]:
        """Whether the job must end, because a process of `peers` is silent, or one did not come, or does not go on."""
        now = self._clock.look()
        peers = [who for who in peers if not who.get('bye')]
        return self._silent(peers, now) or self._absent(now) or self._stalled(peers, now)

    # -- silence -----------------------------------------------------------------------------------------------

    def _silent(self, peers: List[Dict[str, Any]], now: float) -> Optional[Verdict]:
        age = max([now - who['life'].heard for who in peers], default=0.0)
        if age <= self._limits.silence + GATHER_S:
            return None
        silent = [who for who in peers if now - who['life'].heard > self._limits.silence]
        return Verdict('; '.join(self._describe(silent, peers, age)),
                       [who['life'].process for who in silent if who['life'].process is not None])

    def _describe(self, silent: List[Dict[str, Any]], peers: List[Dict[str, Any]], age: float) -> List[str]:
        texts = []
        elsewhere = [who for who in peers if who['life'].host != self._me['host']]
        if len(elsewhere) > 1 and len({who['life'].host for who in elsewhere}) > 1 and silent == elsewhere:
            return ['all other hosts have said nothing for %.0f s: the network of host %s, where worker 0 runs, is cut'
                    % (age, self._me['host'])]
        for host in sorted({who['life'].host for who in silent}):
            here = [who for who in peers if who['life'].host == host]
            quiet = [who for who in silent if who['life'].host == host]
            if host != self._me['host'] and len(quiet) == len(here) > 1:
                texts.append('host %s (%s) has said nothing for %.0f s: it hangs, or its network is cut'
                             % (host, ', '.join(who['name'] for who in quiet), age))
            else:
                texts += ['%s has said nothing for %.0f s: %s' % (who['name'], age, self._cause(who)) for who in quiet]
        return texts

    @staticmethod
    def _cause(who: Dict[str, Any]) -> str:
        state = state_of(who['life'].process)
        if state in ('T', 't'):
            return 'it is stopped, by a signal or a debugger'
        if state == 'D':
            return 'it hangs in the kernel'
        return 'it hangs' if state else 'it is stopped, its host hangs, or the network to it is cut'

    # -- absence -----------------------------------------------------------------------------------------------

    def _absent(self, now: float) -> Optional[Verdict]:
        if now > self._limits.start and len(self._came) < self._workers:
            missing = sorted(set(range(self._workers)) - set(self._came))
            return Verdict('%s did not come within %g s' % (_workers(missing), self._limits.start), [])
        for child, since in self._awaited.items():
            if now - since > self._limits.start:
                return Verdict('%s did not come within %g s' % (self._children[child], self._limits.start), [])
        return None

    # -- workers that do not come to a call --------------------------------------------------------------------

    def _stalled(self, peers: List[Dict[str, Any]], now: float) -> Optional[Verdict]:
        workers = [who for who in peers if who['rank'] >= 0 and not who.get('done')]
        if not workers:
            return None
        last = max(workers, key=lambda who: who['life'].calls)
        least = min(who['life'].calls for who in workers)
        for who in workers:
            life: Life = who['life']
            if life.calls > least or least == last['life'].calls:
                life.missed_since = None
                continue
            if life.missed_since is None:
                life.missed_since, life.patience = now, self._limits.silence
            missed = now - life.missed_since
            text = ('%s has not come to the calls in which others wait (%s, number %d; it made %d) for %.0f s: it is '
                    'at %s' % (who['name'], last['life'].call, last['life'].calls, life.calls, missed,
                                     life.at or 'an unknown place'))
            if 0 < self._limits.stall < missed and not life.busy:
                return Verdict(text, [])
            if missed > life.patience:
                life.patience *= 2
                logger.warning('%s', text)
        return None


def _workers(ranks: List[int]) -> str:
    return 'worker%s %s' % ('s' * (len(ranks) > 1), ', '.join(map(str, ranks)))
