"""Heartbeats: each process sends one every second, and checks that the job monitor still answers.

A process that is stopped, a host that hangs and a link that is cut close no connection.  So every process sends a
heartbeat each second from the thread of its lifeline, and the monitor answers each of them.  After too long a silence
the monitor ends the job, see :mod:`mxhybrid.watchdog.failure_detector`; a process that misses the monitor ends itself.

Silence is measured on a clock that stands still while the process that measures does not run.  Otherwise a process that
was stopped, swapped out or suspended would find all others silent when it continues.
"""
import os
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import activity
from .identity import CAUSES, pid_space, sample_process, script_location, state_of, this_process
from .liveness_probe import query_probe

#: Seconds between two heartbeats.
BEAT_S = 1.0
#: Most seconds that count between two readings of the clock: beyond them the process did not run.
AWAKE_S = 2.0

#: Message about a silent process that computes, by its name and the seconds of its silence.
BUSY_MESSAGE = ('%s has been silent for %.0f s, though it computes: an operation such as a long sort or pickle.loads '
                'keeps its Python from running other threads')


class AwakeClock:
    """A clock that counts the seconds during which this process ran, as far as its readings show."""

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._last = now()
        self.seconds = 0.0

    def advance(self) -> float:
        """Read the time and return the seconds counted since the start."""
        now = self._now()
        self.seconds += min(max(0.0, now - self._last), AWAKE_S)
        self._last = now
        return self.seconds


class Heartbeat:
    """The heartbeats of one process, and the silence of the monitor.

    `limit` (s) bounds that silence until the first answer of the monitor, which has the limit of the job.
    """

    def __init__(self, limit: float, is_worker: bool):
        self._limit = limit
        self._stall = 0.0
        self.is_worker = is_worker
        self._clock = AwakeClock()
        #: When the monitor was last heard, when this process last sent, and when the monitor was last seen computing.
        self._last_heard = self._last_sent = self._last_active = 0.0
        self._activity = activity.Activity()
        #: State letter of the monitor's process when it was last seen alive; empty while this process cannot see it.
        self._state = ''
        #: Addresses of probes that sample the monitor's process.
        self._probes: List[Tuple[str, int]] = []
        #: The address of this process's own probe, if it has one, which all later heartbeats announce.
        self.probe: Optional[Tuple[str, int]] = None
        self._introduced = False
        #: The monitor's process, see :func:`this_process`, once the monitor has answered.
        self.monitor: Optional[Dict[str, Any]] = None

    def due(self) -> bool:
        """Return whether it is time for a heartbeat."""
        now = self._clock.advance()
        if self._introduced and now - self._last_sent < BEAT_S:
            return False
        self._last_sent = now
        return True

    def message(self, calls: int, call: str, waiting: Optional[str], busy: bool = False) -> Dict[str, Any]:
        """Return the heartbeat to send: the activity of this process and the position of its script."""
        beat: Dict[str, Any] = {}
        if self.is_worker:
            beat = {'calls': calls, 'call': call, 'waiting': waiting, 'busy': busy, 'location': script_location()}
        if not self._introduced:
            beat['process'], self._introduced = this_process(), True
        if self.probe is not None:
            beat['probe'] = self.probe
        return beat

    def mark_heard(self) -> None:
        """Record that the monitor sent something."""
        self._last_heard = self._last_active = self._clock.seconds
        self._activity.reset()
        self._state = ''

    def handle_answer(self, answer: Dict[str, Any]) -> None:
        """Take the limits, the probes and the monitor's process from an answer of the monitor."""
        self._limit, self._stall = float(answer['limit']), float(answer.get('stall', 0.0))
        self._probes = [(str(host), int(port)) for host, port in answer.get('probes', ())]
        self.monitor = answer.get('process') or self.monitor

    def sees_monitor(self) -> bool:
        """Return whether this process can see the monitor's process, and is another process."""
        return self.monitor is not None and state_of(self.monitor) != '' and not self._is_monitor_process()

    def _is_monitor_process(self) -> bool:
        return self.monitor is not None and (self.monitor['pid'], self.monitor['pid_space']) == (
            os.getpid(), pid_space())

    def sample_monitor(self) -> Optional[activity.ThreadSample]:
        return sample_process(self.monitor)

    def _sample(self) -> bool:
        """Sample the monitor's process, here or by a probe; return whether more samples are needed to judge it."""
        sample = None
        is_elsewhere = self.monitor is not None and self.monitor['pid_space'] != pid_space()
        if self.sees_monitor():
            sample = self.sample_monitor()
        elif self._probes and is_elsewhere:
            sample = query_probe(self._probes[0])
            if sample is None:  # try another probe the next time
                self._probes.append(self._probes.pop(0))
        if sample is not None and sample['state'] in CAUSES:
            self._state = sample['state']
        elif sample is None and is_elsewhere:
            self._state = ''  # on this host no link can be cut: a process without a sample has just ended
        if self._activity.add_sample(sample):
            self._last_active = self._clock.seconds
        return sample is not None and self._activity.is_computing is None

    def suspected_silence(self) -> Optional[str]:
        """Return why the monitor seems to be silent, after half of the time that ends the job, else None.

        It is for other threads: it reads what was seen until the last heartbeat.
        """
        return None if self._is_monitor_process() else self._failure_reason(self._limit / 2)

    def death_reason(self) -> str:
        """Return why the connection was closed: a stopped monitor may have been killed for that by another process."""
        self._clock.advance()
        # A process that has ended shows nothing any more; what was seen before its end counts.
        return self._failure_reason(self._limit / 2) or 'worker 0, which watches the job, died unexpectedly'

    def silence_reason(self) -> Optional[str]:
        """Return why the job must end if the monitor has been silent for too long, else None.

        Return None in the monitor's own process.  If the monitor's thread cannot run, for example during a computation
        of the script, this thread cannot run either, and if it is the first to run again, it would find the monitor
        silent.  All other processes notice such a silence.
        """
        if self._is_monitor_process():
            return None
        unclear = self._clock.advance() - self._last_heard > activity.LATE_HEARTBEAT_S and self._sample()
        return None if unclear else self._failure_reason(self._limit)

    def _failure_reason(self, limit: float) -> Optional[str]:
        now = self._clock.seconds
        silent_s = now - self._last_heard
        if now - self._last_active <= limit:
            if not self._stall or silent_s <= max(self._stall, self._limit):
                return None
            return BUSY_MESSAGE % ('worker 0, which watches the job,', silent_s)
        return 'worker 0, which watches the job, has been silent for %.0f s: %s' % (silent_s, CAUSES.get(
            self._state, 'it is stopped, a host hangs, or the network between it and this process is cut'))
