"""A failure detector over processes that send heartbeats on command, by a clock that is set by hand."""
from mxhybrid.base.settings import Limits
from mxhybrid.watchdog.failure_detector import FailureDetector

LIMITS = Limits(start=30.0, silence=10.0, stall=100.0)


class Time:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Watch:
    """A failure detector, and processes by name and host that send heartbeats on command."""

    def __init__(self, workers, **hosts):
        self.time = Time()
        self.detector = FailureDetector(workers, LIMITS, self.time)
        self.peers = []
        for name, host in hosts.items():
            peer = self.detector.add_process(name, int(name[-1]) if name.startswith('worker') else -1)
            self.peers.append(peer)
            self.beat(peer, process={'pid': 2 ** 22 + len(self.peers), 'host': host, 'pid_space': host, 'started': '1'})

    def beat(self, peer, calls=0, call='', location='train.py:1', waiting=None, **more):
        """Send a heartbeat of a process and return the answer."""
        self.detector.mark_heard(peer)
        return self.detector.handle_heartbeat(peer, dict(more, calls=calls, call=call, location=location,
                                                         waiting=waiting))

    def wait(self, seconds, beating=(), **beat):
        """Let time pass while some processes send heartbeats; return the first failure, if there is one."""
        for _ in range(int(seconds)):
            self.time.now += 1
            for peer in beating:
                self.beat(peer, **beat.get(peer.name, {}))
            failure = self.detector.detect(self.peers)
            if failure is not None:
                return failure
        return None


class Sampler:
    """Samples of processes: those whose ids are in `busy` take all the CPU time that there is."""

    def __init__(self, clock):
        self.clock, self.busy, self.state = clock, set(), 'S'

    def __call__(self, process):
        time_s = self.clock()
        return {'time_s': time_s, 'state': self.state,
                'threads': {'1': [time_s if process['pid'] in self.busy else 0.0, 0.0, 0], '2': [0.0, 0.0, 0]}}
