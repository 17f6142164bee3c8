"""The failure detector of the job monitor: finds processes that are silent, absent or stuck.

The term is that of Chandra and Toueg, "Unreliable Failure Detectors for Reliable Distributed Systems" (1996).  Too long
a silence ends the job, and the message names the silent processes.  A process that is silent but computes is given up
only at the limit of stalls, see :mod:`mxhybrid.watchdog.activity`: something keeps its Python from running the thread
that sends heartbeats.  The detector samples the processes of its own host, and asks processes of other hosts to sample
those.

If the other workers wait for a worker that lives but does something else, the detector warns, and in the end gives up.
"""
import time
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from ..base.log import get_logger
from ..base.settings import Limits
from .activity import LATE_HEARTBEAT_S, checked_sample
from .call_log import checked_calls, difference_of_calls
from .heartbeat import BUSY_MESSAGE, AwakeClock
from .identity import CAUSES, sample_process, state_of, this_process
from .peers import Peer
from .script import AN_ARRAY
from .standstill import ADVICE, Standstill, failures_of

logger = get_logger(__name__)

#: Seconds beyond the limit after which silence is reported: other processes may follow, and one message names them all.
GATHER_S = 2.0
#: Seconds for which all workers must have waited in blocking collective calls that differ.
PATIENCE_S = 10.0
#: Most liveness probes that a process is told.
_MAX_PROBES = 4


class Failure(NamedTuple):
    """A failure that ends the job: the reason, and the silent processes, which cannot end by themselves."""

    reason: str
    silent: List[Dict[str, Any]]


class FailureDetector:
    """The failure detector of a job of that number of `workers`; the monitor's thread calls it."""

    def __init__(self, workers: int, limits: Limits, now: Callable[[], float] = time.monotonic):
        self._workers, self._limits = workers, limits
        self._clock = AwakeClock(now)
        self._standstill = Standstill(limits)
        self._this_process: Dict[str, Any] = this_process()
        self._ranks_joined: List[int] = []
        self._last_joined_s = 0.0
        #: Names of servers and scheduler by :attr:`Peer.key`, and since when those that have not joined are awaited.
        self._servers: Dict[Tuple[str, int], str] = {}
        self._awaited: Dict[Tuple[str, int], float] = {}
        self._introduced: Set[Tuple[str, int]] = set()
        self._probes: List[Peer] = []

    def add_process(self, name: str, rank: int) -> Peer:
        """Add a process that has connected."""
        if rank >= 0:
            self._ranks_joined.append(rank)
            self._last_joined_s = self._clock.seconds
        return Peer(name, rank, self._clock.seconds, self._limits.silence)

    def mark_heard(self, peer: Peer) -> None:
        peer.mark_heard(self._clock.seconds, self._limits.silence)

    def handle_heartbeat(self, peer: Peer, beat: Dict[str, Any]) -> Dict[str, Any]:
        """Take a heartbeat of a process, and return the answer."""
        answer: Dict[str, Any] = {'limit': self._limits.silence, 'stall': self._limits.stall}
        if 'probe' in beat and peer not in self._probes:
            peer.probe = list(beat['probe'])
            self._probes.append(peer)
            self._probes.sort(key=lambda prober: prober.is_worker)  # servers first: they run little Python
        if self._probes and not self._sees(peer):
            answer['probes'] = [prober.probe for prober in self._probes if not prober.has_left][:_MAX_PROBES]
        if 'process' in beat:
            key = peer.introduce(dict(beat['process']))
            self._introduced.add(key)
            self._awaited.pop(key, None)
            answer['process'] = self._this_process
        if peer.is_worker:
            if 'log' in beat:
                peer.log = checked_calls(beat['log'])
            peer.failure = str(beat.get('failure', ''))
            peer.set_progress(int(beat['calls']), str(beat['call']), str(beat['location']), bool(beat.get('busy')),
                              None if beat.get('waiting') is None else str(beat['waiting']), self._clock.seconds)
        return {'beat': answer}

    def expect_servers(self, parent: Peer, servers: List[List[Any]]) -> None:
        """Record the processes that a worker has started, given as ``[role, pid]``."""
        for role, pid in servers:
            key = (parent.pid_space, int(pid))
            self._servers[key] = 'the %s with pid %d on host %s' % (role, pid, parent.host)
            if key not in self._introduced:  # its heartbeat may arrive before its parent's message
                self._awaited[key] = self._clock.seconds

    def has_parent(self, peer: Peer) -> bool:
        """Return whether a worker started this process, and will learn how it ends."""
        return peer.key in self._servers

    def detect(self, peers: List[Peer]) -> Optional[Failure]:
        """Return the failure that must end the job: a silent, absent or stuck process; None if there is none."""
        now = self._clock.advance()
        peers = [peer for peer in peers if not peer.has_left]
        for peer in self._late(peers):
            if self._sees(peer):
                peer.add_sample(now, sample_process(peer.process))
        return (self._detect_silence(peers, now) or self._detect_absence(now) or self._detect_deadlock(peers)
                or self._detect_stall(peers, now) or self._detect_standstill(peers, now))

    def _late(self, peers: List[Peer]) -> List[Peer]:
        return [peer for peer in peers if self._clock.seconds - peer.last_heard > LATE_HEARTBEAT_S]

    def _sees(self, peer: Peer) -> bool:
        """Return whether this process can sample a process."""
        return peer.pid_space == self._this_process['pid_space']

    def sample_requests(self, peers: List[Peer]) -> List[Tuple[Peer, List[Dict[str, Any]]]]:
        """Return requests for samples of late processes of other hosts: the process to ask, and those to sample."""
        late = self._late(peers)
        requests = []
        for space in {peer.pid_space for peer in late if peer.process is not None and not self._sees(peer)}:
            neighbours = [peer for peer in peers if peer.pid_space == space]
            # Servers, with their rank of -1, before workers, which may all compute.
            able = sorted((peer for peer in neighbours if peer not in late and not peer.has_left),
                          key=lambda peer: peer.rank)
            if able:
                requests.append((able[0], _processes(peer for peer in neighbours if peer in late)))
        return requests

    def add_samples(self, peers: List[Peer], samples: List[List[Any]]) -> None:
        """Add the samples that a process took on request, given as ``[process, sample]``."""
        for process, sample in samples:
            for peer in self._late(peers):
                if peer.process == process:
                    peer.add_sample(self._clock.seconds, checked_sample(sample))

    def _detect_silence(self, peers: List[Peer], now: float) -> Optional[Failure]:
        for peer in peers:
            if peer.needs_busy_warning(now):
                logger.warning(BUSY_MESSAGE % (peer.name, now - peer.last_heard)
                               + (peer.location and '; its script was at ' + peer.location))
        limit = max(self._limits.stall, self._limits.silence)
        for peer in peers:
            stalled = 0 < self._limits.stall and limit < now - peer.last_heard and not peer.busy
            if stalled and now - peer.last_active <= self._limits.silence:
                return Failure(BUSY_MESSAGE % (peer.name, now - peer.last_heard), _processes([peer]))
        if max([now - peer.last_active for peer in peers], default=0.0) <= self._limits.silence + GATHER_S:
            return None
        silent = [peer for peer in peers if now - peer.last_active > self._limits.silence]
        silent_s = max(now - peer.last_heard for peer in silent)
        return Failure('; '.join(self._describe(silent, peers, silent_s)), _processes(silent))

    def _describe(self, silent: List[Peer], peers: List[Peer], silent_s: float) -> List[str]:
        """Return sentences about the silent processes, which name the host if all its processes are silent."""
        this_host = self._this_process['host']
        elsewhere = [peer for peer in peers if peer.host != this_host]
        if len(elsewhere) > 1 and len({peer.host for peer in elsewhere}) > 1 and silent == elsewhere:
            return ['all other hosts have been silent for %.0f s: the network of host %s, where worker 0 runs, is cut'
                    % (silent_s, this_host)]
        texts = []
        for host in sorted({peer.host for peer in silent}):
            on_host = [peer for peer in peers if peer.host == host]
            silent_on_host = [peer for peer in silent if peer.host == host]
            if host != this_host and len(silent_on_host) == len(on_host) > 1:
                texts.append('host %s (%s) has been silent for %.0f s: it hangs, or its network is cut'
                             % (host, ', '.join(peer.name for peer in silent_on_host), silent_s))
            else:
                texts += ['%s has been silent for %.0f s: %s' % (peer.name, silent_s, CAUSES.get(
                    state_of(peer.process), 'it is stopped, its host hangs, or the network to it is cut'))
                          for peer in silent_on_host]
        return texts

    def _detect_absence(self, now: float) -> Optional[Failure]:
        # Workers that share few cores join one after another.
        if now - self._last_joined_s > self._limits.start and len(self._ranks_joined) < self._workers:
            missing = sorted(set(range(self._workers)) - set(self._ranks_joined))
            return Failure('worker%s %s did not join within %g s' % (
                's' * (len(missing) > 1), ', '.join(map(str, missing)), self._limits.start), [])
        for key, since in self._awaited.items():
            if now - since > self._limits.start:
                return Failure('%s did not join within %g s' % (self._servers[key], self._limits.start), [])
        return None

    def _detect_deadlock(self, peers: List[Peer]) -> Optional[Failure]:
        # A silent worker may wait no more, so its time ends with its last heartbeat.
        calls = {peer.rank: peer.waits_for for peer in peers
                 if peer.is_worker and not peer.has_ended and peer.last_heard - peer.waits_since > PATIENCE_S}
        names = set(calls.values())
        if len(calls) < self._workers or len(names) == 1 or not names.isdisjoint({None, AN_ARRAY}):
            return None
        text = ', '.join('worker %d in %s' % item for item in sorted(calls.items()))
        return Failure('all workers wait for each other in different calls (%s): make the same calls of the store in '
                       'the same order on every worker' % text, [])

    def _detect_stall(self, peers: List[Peer], now: float) -> Optional[Failure]:
        workers = [peer for peer in peers if peer.is_worker and not peer.has_ended]
        if not workers:
            return None
        first = max(workers, key=lambda peer: peer.calls)
        least_calls = min(peer.calls for peer in workers)
        for peer in workers:
            if peer.calls > least_calls or least_calls == first.calls:
                peer.reset_missed()
                continue
            missed_s = peer.seconds_missed(now, self._limits.silence)
            text = ('%s has kept the other workers waiting for %.0f s: they are at collective call number %d (%s), it '
                    'has made %d calls and is at %s' % (peer.name, missed_s, first.calls, first.call, peer.calls,
                                                        peer.location or 'an unknown place'))
            if 0 < self._limits.stall < missed_s and not peer.busy:
                difference = difference_of_calls({worker.rank: worker.log for worker in workers})
                if difference:
                    text += '; %s; %s' % (difference, ADVICE)
                text += failures_of(workers)
                is_silent = now - peer.last_heard > self._limits.silence
                return Failure(text, _processes([peer]) if is_silent else [])
            if peer.needs_missed_warning(missed_s):
                logger.warning('%s', text)
        return None

    def _detect_standstill(self, peers: List[Peer], now: float) -> Optional[Failure]:
        text = self._standstill.detect([peer for peer in peers if peer.is_worker], now)
        return None if text is None else Failure(text, [])


def _processes(peers: Iterable[Peer]) -> List[Dict[str, Any]]:
    return [peer.process for peer in peers if peer.process is not None]
