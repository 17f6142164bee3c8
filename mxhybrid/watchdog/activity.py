"""Judges by the CPU time of its threads whether a silent process computes.

A process that holds Python's interpreter lock for long, in `pickle.loads` or a sort for example, cannot send a
heartbeat during this time: the thread that sends heartbeats waits for the lock. The kernel shows that such a process is
running: one of its threads takes all the CPU time that it can get.  A process that is stopped, sleeps or hangs in the
kernel takes none.

A process can sample others only where process ids have the same meaning.  :mod:`mxhybrid.watchdog.liveness_probe` hands
samples on to other hosts.
"""
import time
from typing import Any, Dict, Optional

from ..base import proc

#: Seconds of silence after which a heartbeat is late, and sampling begins.
LATE_HEARTBEAT_S = 1.5
#: Least seconds between two samples of which the difference means something.
SAMPLE_INTERVAL_S = 0.9

#: Least shares of the time between two samples that a computing thread is on a CPU, and is on one or waits for one.
#: Threads that only poll for work or for the lock, hundreds of times a second, stay below one of the two.
RUN_SHARE, RUNNABLE_SHARE = 0.04, 0.3
#: Where dozens of processes share a core, a computing thread gets a smaller share.  It waits for a CPU nearly all the
#: time, and keeps one for some milliseconds, the scheduler's time slice, whenever it gets one; a polling thread gives
#: it up after some microseconds.  The least share of the time, and the least seconds for each time on a CPU.
CROWDED_RUNNABLE_SHARE, LEAST_SLICE_S = 0.9, 0.0005

#: The time of a sample, the state letter of the process, and the times of each thread (`proc.thread_times`).
ThreadSample = Dict[str, Any]


def sample_threads(pid: int) -> Optional[ThreadSample]:
    """Sample the threads of a process; None if it has gone."""
    time_s = time.monotonic()
    threads = proc.thread_times(pid)
    return {'time_s': time_s, 'threads': threads} if threads else None


class Activity:
    """The activity of one process, from samples that are taken while its heartbeats are late."""

    def __init__(self) -> None:
        self._last: Optional[ThreadSample] = None
        #: Whether it computed between the last two samples; None before there are two.
        self.is_computing: Optional[bool] = None

    def reset(self) -> None:
        """Forget all samples: the process is not late any more."""
        self._last = self.is_computing = None

    def add_sample(self, sample: Optional[ThreadSample]) -> bool:
        """Add a sample, None if there is none, and return whether it shows that the process computes."""
        if sample is None:
            return False
        if self._last is None:
            self._last = sample
            return False
        elapsed_s = float(sample['time_s']) - float(self._last['time_s'])
        if elapsed_s < SAMPLE_INTERVAL_S:
            return False
        former = self._last['threads']
        self.is_computing = any(_is_computing(times, former.get(thread, times), elapsed_s)
                                for thread, times in sample['threads'].items())
        self._last = sample
        return self.is_computing


def _is_computing(times: Any, former: Any, elapsed_s: float) -> bool:
    """Return whether a thread computed between two samples of its times."""
    ran_s, waited_s, turns = (new - old for new, old in zip(times, former))
    runnable_s = ran_s + waited_s
    return bool((ran_s >= RUN_SHARE * elapsed_s and runnable_s >= RUNNABLE_SHARE * elapsed_s)
                or (turns and ran_s >= LEAST_SLICE_S * turns and runnable_s >= CROWDED_RUNNABLE_SHARE * elapsed_s))


def checked_sample(value: Any) -> Optional[ThreadSample]:
    """Return a sample that another process sent as JSON; None if it is not one."""
    try:
        return {'time_s': float(value['time_s']), 'state': str(value.get('state', '')),
                'threads': {str(thread): [float(ran), float(waited), int(turns)]
                            for thread, (ran, waited, turns) in value['threads'].items()}}
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
