"""Workers that wait for each other: none of them computes, and none can go on.

A worker waits while it is in a collective call that blocks, or while its script waits for an array and no thread of
its process computes.  Where all workers wait and nothing changes up to the limit of stalls, the job ends.  The same
holds where one worker waits, and another has made other calls than it.
"""
from typing import List, Optional

from ..base.log import get_logger
from ..base.settings import Limits
from .call_log import difference_of_calls
from .peers import Peer

logger = get_logger(__name__)

#: What to do, behind a difference between workers.
ADVICE = 'make the same calls, and the same backward passes, in the same order on every worker'


class Standstill:
    """Notices that workers wait for each other."""

    def __init__(self, limits: Limits):
        self._limits = limits
        self._patience = limits.silence

    def detect(self, workers: List[Peer], now: float) -> Optional[str]:
        """Return why the job must end, for the monitor to say; None while it may go on."""
        running = [peer for peer in workers if not peer.has_ended]
        waiting = [peer for peer in running if peer.waits_for is not None]
        # A worker that has made no call yet joins the job, which has a deadline of its own.
        if not waiting or any(peer.busy or not peer.calls for peer in running):
            self._patience = self._limits.silence
            return None
        odd = difference_of_calls({peer.rank: peer.log for peer in workers})
        if len(waiting) == len(running):
            seconds = min(now - peer.still_since for peer in waiting)
        elif odd:
            seconds = max(now - peer.still_since for peer in waiting)
        else:
            seconds = 0.0
        if seconds <= self._limits.silence:
            self._patience = self._limits.silence
        ends = 0 < self._limits.stall < seconds
        if not ends and seconds <= self._patience:
            return None
        text = 'workers have waited for each other for %.0f s: %s%s' % (
            seconds, '; '.join(map(_place, sorted(workers, key=lambda peer: peer.rank))), odd and '; ' + odd)
        if ends:
            return '%s; %s' % (text, ADVICE)
        self._patience *= 2
        logger.warning('%s', text)
        return None


def _place(peer: Peer) -> str:
    """Return where a worker is."""
    made = 'after call number %d, %s' % (peer.calls, peer.call) if peer.calls else 'before its first call'
    if peer.has_ended:
        return '%s has ended its script, %s' % (peer.name, made)
    return '%s %s at %s, %s' % (peer.name, 'computes' if peer.waits_for is None else 'waits',
                                peer.location or 'an unknown place', made)
