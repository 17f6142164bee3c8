"""What each process says and hears once a second: its beat, and whether the job monitor still answers.

A process that is stopped, a host that hangs and a link that is cut close no connection.  So every process sends a
beat a second from its lifeline's thread, and the monitor answers each.  Who hears nothing for too long draws its
conclusion: the monitor ends the job, see :mod:`mxhybrid.watchdog.failure_detector`; a process that misses the monitor ends itself.

The beat of a worker also says how many calls that need everybody it has made, and where its script is.

Silence is counted on a clock that stands still while its own process does not run, or a process that was stopped,
swapped out or suspended would find all others silent when it goes on.
"""
import os
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import activity
from .identity import script_location, sample_process, pid_space, state_of, this_process
from .liveness_probe import query_probe

#: Seconds between two beats.
BEAT_S = 1.0
#: Of the time between two looks at a clock, what counts at most: beyond it the process did not run.
AWAKE_S = 2.0

#: What is said of a process that computes, by its name and the seconds of its silence.
BUSY_MESSAGE = ('%s has said nothing for %.0f s, though it computes: something keeps its Python from running other '
            'threads, a long sort or pickle.loads, say')

#: Why the monitor is silent, by the state letter of its process.
_CAUSES = {'T': 'it is stopped, by a signal or a debugger', 't': 'a debugger holds it', 'D': 'it hangs in the kernel',
           'S': 'it hangs', 'R': 'it hangs'}


class AwakeClock:
    """Seconds during which this process ran, by the looks that it took at the clock."""

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._last = now()
        self.seconds = 0.0

    def advance(self) -> float:
        """Go on; returns the seconds since the start."""
        now = self._now()
        self.seconds += min(max(0.0, now - self._last), AWAKE_S)
        self._last = now
        return self.seconds


class Heartbeat:
    """Beats of one process, and how long it missed the monitor's; `limit` (s) holds until the monitor says its own."""

    def __init__(self, limit: float, is_worker: bool):
        self._limit = limit
        self._stall = 0.0
        self.is_worker = is_worker
        self._clock = AwakeClock()
        self._last_heard = self._last_sent = self._last_active = 0.0
        self._activity = activity.Activity()
        #: State letter of the monitor's process when it was last seen alive; empty where it is out of sight.
        self._state = ''
        self._probes: List[Tuple[str, int]] = []
        self._probe: Optional[Tuple[str, int]] = None
        self._introduced = False
        #: Who the monitor is, once it has answered.
        self.monitor: Optional[Dict[str, Any]] = None

    def due(self) -> bool:
        """Whether it is time for a beat."""
        now = self._clock.advance()
        if self._introduced and now - self._last_sent < BEAT_S:
            return False
        self._last_sent = now
        return True

    def message(self, calls: int, call: str, waiting: Optional[str], busy: bool = False) -> Dict[str, Any]:
        """The message: what this process has done and where it is."""
        beat: Dict[str, Any] = {}
        if self.is_worker:
            beat = {'calls': calls, 'call': call, 'waiting': waiting, 'busy': busy, 'location': script_location()}
        if not self._introduced:
            beat['process'], self._introduced = this_process(), True
        if self._probe is not None:
            beat['probe'] = self._probe
        return beat

    def mark_heard(self) -> None:
        """The monitor said something."""
        self._last_heard = self._last_active = self._clock.seconds
        self._activity.reset()
        self._state = ''

    def handle_answer(self, answer: Dict[str, Any]) -> None:
        self._limit, self._stall = float(answer['limit']), float(answer.get('stall', 0.0))
        self._probes = [(str(host), int(port)) for host, port in answer.get('probes', ())]
        self.monitor = answer.get('process') or self.monitor

    def sees_monitor(self) -> bool:
        """Whether this process can see the monitor's, and is not it."""
        return self.monitor is not None and state_of(self.monitor) != '' and not self._is_monitor_process()

    def _is_monitor_process(self) -> bool:
        """Whether the monitor is in this very process."""
        return self.monitor is not None and (self.monitor['pid'], self.monitor['pid_space']) == (
            os.getpid(), pid_space())

    def set_probe(self, witness: Tuple[str, int]) -> None:
        """Have others told that at this address they can ask what the monitor's process does."""
        self._probe = witness

    def sample_monitor(self) -> Optional[activity.ThreadSample]:
        """What the monitor's process does."""
        return sample_process(self.monitor)

    def _sample(self) -> bool:
        """ThreadSample at the monitor's process; whether it is too early to say what it does."""
        seen = None
        if self.sees_monitor():
            seen = self.sample_monitor()
        elif self._probes and self.monitor is not None and self.monitor['pid_space'] != pid_space():
            seen = query_probe(self._probes[0])
            if seen is None:  # the next time another one
                self._probes.append(self._probes.pop(0))
        if seen is not None and seen['state'] in _CAUSES:
            self._state = seen['state']
        elif seen is None and self.monitor is not None and self.monitor['pid_space'] != pid_space():
            self._state = ''  # nothing cuts off a process of this host: there it has just been ended
        if self._activity.add_sample(seen):
            self._last_active = self._clock.seconds
        return seen is not None and self._activity.is_computing is None

    def death_reason(self) -> str:
        """What to say when the connection is closed: who stopped it may have been ended for that by another process."""
        self._clock.advance()
        # What is left of it now tells nothing, what was seen of it before does.
        return self._failure_reason(self._limit / 2) or 'worker 0, which watches the job, died without a word'

    def silence_reason(self) -> Optional[str]:
        """What to say if the monitor has been silent for too long, else None.

        Never in its own process: what keeps the one thread from running, the script's that computes, say, keeps the
        other, and who runs again first hears nothing new.  All others would notice.
        """
        if self._is_monitor_process():
            return None
        unclear = self._clock.advance() - self._last_heard > activity.LATE_HEARTBEAT_S and self._sample()
        return None if unclear else self._failure_reason(self._limit)

    def _failure_reason(self, limit: float) -> Optional[str]:
        now = self._clock.seconds
        seconds = now - self._last_heard
        if now - self._last_active <= limit:
            if not self._stall or seconds <= max(self._stall, self._limit):
                return None
            return BUSY_MESSAGE % ('worker 0, which watches the job,', seconds)
        return 'worker 0, which watches the job, has said nothing for %.0f s: %s' % (seconds, _CAUSES.get(
            self._state, 'it is stopped, a host hangs, or the network between it and this process is cut'))
