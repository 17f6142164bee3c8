"""Detect workers that wait for each other: none of them computes, and none can continue.

A worker waits while it is in a collective call that blocks, or while its script waits for an array and no thread of
its process computes.  If all workers wait and nothing changes until the limit of stalls, the job ends.  So it does if
one worker waits and another one has made different calls.
"""
from typing import List, Optional

from ..base.log import get_logger
from ..base.settings import Limits
from .call_log import difference_of_calls
from .peers import Peer

logger = get_logger(__name__)

#: The remedy that follows a difference between workers in a message.
ADVICE = 'make the same calls, and the same backward passes, in the same order on every worker'


class Standstill:
    """A detector of workers that wait for each other; `limits` are those of the job."""

    def __init__(self, limits: Limits):
        self._limits = limits
        self._patience = limits.silence

    def detect(self, workers: List[Peer], now: float) -> Optional[str]:
        """Return why the job must end; None if it may continue."""
        running = [peer for peer in workers if not peer.has_ended]
        waiting = [peer for peer in running if peer.waits_for is not None]
        # A worker that has made no call yet is joining the job, for which there is a deadline of its own.
        if not waiting or any(peer.busy or not peer.calls for peer in running):
            self._patience = self._limits.silence
            return None
        difference = difference_of_calls({peer.rank: peer.log for peer in workers})
        if len(waiting) == len(running):
            waited_s = min(now - peer.still_since for peer in waiting)
        elif difference:
            waited_s = max(now - peer.still_since for peer in waiting)
        else:
            waited_s = 0.0
        if waited_s <= self._limits.silence:
            self._patience = self._limits.silence
        ends = 0 < self._limits.stall < waited_s
        if not ends and waited_s <= self._patience:
            return None
        positions = [_position(peer) for peer in sorted(workers, key=lambda peer: peer.rank)]
        text = 'workers have waited for each other for %.0f s: %s' % (
            waited_s, '; '.join(positions + [difference] * bool(difference)))
        if ends:
            return '%s; %s%s' % (text, ADVICE, failures_of(workers))
        self._patience *= 2
        logger.warning('%s', text)
        return None


def failures_of(workers: List[Peer]) -> str:
    """Return the errors that scripts of workers got: other workers may wait for what these workers skipped."""
    return ''.join('; %s %s' % (peer.name, peer.failure) for peer in sorted(workers, key=lambda peer: peer.rank)
                   if peer.failure)


def _position(peer: Peer) -> str:
    """Return a phrase about the position of a worker in its script and its calls."""
    last_call = 'after call number %d, %s' % (peer.calls, peer.call) if peer.calls else 'before its first call'
    if peer.has_ended:
        return '%s has ended its script, %s' % (peer.name, last_call)
    return '%s %s at %s, %s' % (peer.name, 'computes' if peer.waits_for is None else 'waits',
                                peer.location or 'an unknown place', last_call)
