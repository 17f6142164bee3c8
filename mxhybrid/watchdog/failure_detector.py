"""The monitor's verdicts: who is silent, who does not come, and who does not go on.

The monitor ends the job after too long a silence and names the silent ones.  Who is silent and computes is not given
up before the limit of stalls, see :mod:`mxhybrid.watchdog.activity`: something keeps its Python from running the thread
that beats.  The monitor looks at the processes of its own host, and has others look at those of theirs.

When the others wait for a worker that is alive but elsewhere, worker 0 says so, and in the end gives up.
"""
import time
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from ..base.log import get_logger
from ..base.settings import Limits
from .activity import LATE_HEARTBEAT_S, checked_sample
from .heartbeat import BUSY_MESSAGE, AwakeClock
from .call_log import checked_calls, difference_of_calls
from .identity import sample_process, state_of, this_process
from .peers import Peer
from .standstill import ADVICE, Standstill

logger = get_logger(__name__)

#: Seconds beyond the limit after which silence is reported: others may follow, and all are named together.
GATHER_S = 2.0
#: Witnesses that a process knows at most.
_MAX_PROBES = 4


class Failure(NamedTuple):
    """Why the job must end, and the processes that cannot leave by themselves."""

    reason: str
    silent: List[Dict[str, Any]]


class FailureDetector:
    """Keeps watch over all processes for the monitor, in its thread; so many `workers` will come."""

    def __init__(self, workers: int, limits: Limits, now: Callable[[], float] = time.monotonic):
        self._workers, self._limits = workers, limits
        self._clock = AwakeClock(now)
        self._standstill = Standstill(limits)
        self._this_process: Dict[str, Any] = this_process()
        self._came: List[int] = []
        #: Servers and scheduler by space of process ids and own id: names, and since when those that did not come
        #: are missed.
        self._servers: Dict[Tuple[str, int], str] = {}
        self._awaited: Dict[Tuple[str, int], float] = {}
        self._introduced: Set[Tuple[str, int]] = set()
        self._probes: List[Peer] = []

    def add_process(self, name: str, rank: int) -> Peer:
        """A process has connected."""
        if rank >= 0:
            self._came.append(rank)
        return Peer(name, rank, self._clock.seconds, self._limits.silence)

    def mark_heard(self, peer: Peer) -> None:
        """A process has said something."""
        peer.mark_heard(self._clock.seconds, self._limits.silence)

    def handle_heartbeat(self, peer: Peer, beat: Dict[str, Any]) -> Dict[str, Any]:
        """A process beats; returns the answer."""
        answer: Dict[str, Any] = {'limit': self._limits.silence, 'stall': self._limits.stall}
        if 'probe' in beat and peer not in self._probes:
            peer.set_probe(beat['probe'])
            self._probes.append(peer)
            self._probes.sort(key=lambda one: one.is_worker)  # servers first: they run little Python
        if self._probes and not self._sees(peer):
            answer['probes'] = [peer.probe for one in self._probes if not one.has_left][:_MAX_PROBES]
        if 'process' in beat:
            peer.set_process(beat['process'])
            assert peer.key is not None
            self._introduced.add(peer.key)
            self._awaited.pop(peer.key, None)
            answer['process'] = self._this_process
        if peer.is_worker:
            if 'log' in beat:
                peer.set_log(checked_calls(beat['log']))
            peer.set_progress(int(beat['calls']), str(beat['call']), str(beat['location']), bool(beat.get('busy')),
                         None if beat.get('waiting') is None else str(beat['waiting']), self._clock.seconds)
        return {'beat': answer}

    def expect_servers(self, parent: Peer, children: List[List[Any]]) -> None:
        """A worker has started processes, given as ``[role, pid]``."""
        for role, pid in children:
            child = (parent.pid_space, int(pid))
            self._servers[child] = 'the %s with pid %d on host %s' % (role, pid, parent.host)
            if child not in self._introduced:  # it may be faster than its parent's message
                self._awaited[child] = self._clock.seconds

    def has_parent(self, peer: Peer) -> bool:
        """Whether a worker started this process and will learn how it ended."""
        return peer.key in self._servers

    def detect(self, peers: List[Peer]) -> Optional[Failure]:
        """Whether the job must end, because a process of `peers` is silent, or one did not come, or does not go on."""
        now = self._clock.advance()
        peers = [peer for peer in peers if not peer.has_left]
        for peer in self._late(peers):
            if self._sees(peer):
                peer.add_sample(now, sample_process(peer.process))
        return self._detect_silence(peers, now) or self._detect_absence(now) or self._detect_stall(peers, now) or self._detect_standstill(peers, now)

    def _late(self, peers: List[Peer]) -> List[Peer]:
        return [peer for peer in peers if self._clock.seconds - peer.last_heard > LATE_HEARTBEAT_S]

    def _sees(self, peer: Peer) -> bool:
        """Whether a process runs where this one can see it."""
        return peer.pid_space == self._this_process['pid_space']

    def sample_requests(self, peers: List[Peer]) -> List[Tuple[Peer, List[Dict[str, Any]]]]:
        """Whom to ask to look at which late processes that this one cannot see."""
        late = self._late(peers)
        found = []
        for there in {peer.pid_space for peer in late if peer.process is not None and not self._sees(peer)}:
            here = [peer for peer in peers if peer.pid_space == there]
            # Servers rather than workers, which may all do the same.
            able = sorted((peer for peer in here if peer not in late and not peer.has_left), key=lambda peer: peer.rank)
            if able:
                found.append((able[0], _processes(peer for peer in here if peer in late)))
        return found

    def add_samples(self, peers: List[Peer], seen: List[List[Any]]) -> None:
        """What somebody saw who was asked, as ``[process, look]``."""
        for process, found in seen:
            for peer in self._late(peers):
                if peer.process == process:
                    peer.add_sample(self._clock.seconds, checked_sample(found))

    def _detect_silence(self, peers: List[Peer], now: float) -> Optional[Failure]:
        for peer in peers:
            if peer.needs_busy_warning(now):
                logger.warning(BUSY_MESSAGE % (peer.name, now - peer.last_heard) + (peer.location and '; it was at ' + peer.location))
        limit = max(self._limits.stall, self._limits.silence)
        for peer in peers:
            stalled = 0 < self._limits.stall and limit < now - peer.last_heard and not peer.busy
            if stalled and now - peer.last_active <= self._limits.silence:
                return Failure(BUSY_MESSAGE % (peer.name, now - peer.last_heard), _processes([peer]))
        if max([now - peer.last_active for peer in peers], default=0.0) <= self._limits.silence + GATHER_S:
            return None
        silent = [peer for peer in peers if now - peer.last_active > self._limits.silence]
        age = max(now - peer.last_heard for peer in silent)
        return Failure('; '.join(self._describe(silent, peers, age)), _processes(silent))

    def _describe(self, silent: List[Peer], peers: List[Peer], age: float) -> List[str]:
        texts = []
        elsewhere = [peer for peer in peers if peer.host != self._this_process['host']]
        if len(elsewhere) > 1 and len({peer.host for peer in elsewhere}) > 1 and silent == elsewhere:
            return ['all other hosts have said nothing for %.0f s: the network of host %s, where worker 0 runs, is cut'
                    % (age, self._this_process['host'])]
        for host in sorted({peer.host for peer in silent}):
            here = [peer for peer in peers if peer.host == host]
            quiet = [peer for peer in silent if peer.host == host]
            if host != self._this_process['host'] and len(quiet) == len(here) > 1:
                texts.append('host %s (%s) has said nothing for %.0f s: it hangs, or its network is cut'
                             % (host, ', '.join(peer.name for peer in quiet), age))
            else:
                texts += ['%s has said nothing for %.0f s: %s' % (peer.name, age, _cause(peer)) for peer in quiet]
        return texts

    def _detect_absence(self, now: float) -> Optional[Failure]:
        if now > self._limits.start and len(self._came) < self._workers:
            missing = sorted(set(range(self._workers)) - set(self._came))
            return Failure('%s did not come within %g s' % (_workers(missing), self._limits.start), [])
        for child, since in self._awaited.items():
            if now - since > self._limits.start:
                return Failure('%s did not come within %g s' % (self._servers[child], self._limits.start), [])
        return None

    def _detect_stall(self, peers: List[Peer], now: float) -> Optional[Failure]:
        workers = [peer for peer in peers if peer.is_worker and not peer.has_ended]
        if not workers:
            return None
        last = max(workers, key=lambda peer: peer.calls)
        least = min(peer.calls for peer in workers)
        for peer in workers:
            if peer.calls > least or least == last.calls:
                peer.reset_missed()
                continue
            missed = peer.seconds_missed(now, self._limits.silence)
            text = ('%s has not come to the calls in which others wait (%s, number %d; it made %d) for %.0f s: it is '
                    'at %s' % (peer.name, last.call, last.calls, peer.calls, missed, peer.location or 'an unknown place'))
            if 0 < self._limits.stall < missed and not peer.busy:
                odd = difference_of_calls({one.rank: one.log for one in workers})
                if odd:
                    text += '; %s; %s' % (odd, ADVICE)
                mute = now - peer.last_heard > self._limits.silence
                return Failure(text, _processes([peer]) if mute else [])
            if peer.needs_missed_warning(missed):
                logger.warning('%s', text)
        return None

    def _detect_standstill(self, peers: List[Peer], now: float) -> Optional[Failure]:
        text = self._standstill.detect([peer for peer in peers if peer.is_worker], now)
        return None if text is None else Failure(text, [])


def _cause(peer: Peer) -> str:
    state = state_of(peer.process)
    if state in ('T', 't'):
        return 'it is stopped, by a signal or a debugger'
    if state == 'D':
        return 'it hangs in the kernel'
    return 'it hangs' if state else 'it is stopped, its host hangs, or the network to it is cut'


def _processes(peers: Iterable[Peer]) -> List[Dict[str, Any]]:
    return [peer.process for peer in peers if peer.process is not None]


def _workers(ranks: List[int]) -> str:
    return 'worker%s %s' % ('s' * (len(ranks) > 1), ', '.join(map(str, ranks)))
