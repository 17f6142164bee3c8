"""A failure detector over processes that beat when told to, by a clock that is set by hand."""
from mxhybrid.base.settings import Limits
from mxhybrid.watchdog.failure_detector import FailureDetector

LIMITS = Limits(start=30.0, silence=10.0, stall=100.0)


class Time:
    """A clock set by hand; `pass_` goes on in steps short enough to count in full."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Watch:
    """A failure detector over processes that beat when told to."""

    def __init__(self, workers, **hosts):
        self.time = Time()
        self.detector = FailureDetector(workers, LIMITS, self.time)
        self.peers = []
        for name, host in hosts.items():
            who = self.detector.add_process(name, int(name[-1]) if name.startswith('worker') else -1)
            self.peers.append(who)
            self.beat(who, process={'pid': 2 ** 22 + len(self.peers), 'host': host, 'pid_space': host, 'started': '1'})

    def beat(self, who, calls=0, call='', location='train.py:1', waiting=None, **more):
        self.detector.mark_heard(who)
        return self.detector.handle_heartbeat(who, dict(more, calls=calls, call=call, location=location, waiting=waiting))

    def wait(self, seconds, beating=(), **beat):
        """Let time pass while some beat every second; the first failure, if there is one."""
        for _ in range(int(seconds)):
            self.time.now += 1
            for who in beating:
                self.beat(who, **beat.get(who.name, {}))
            failure = self.detector.detect(self.peers)
            if failure is not None:
                return failure
        return None


class Seen:
    """Looks at processes as told: those in `busy` take all the time that there is."""

    def __init__(self, clock):
        self.clock, self.busy, self.state = clock, set(), 'S'

    def __call__(self, process):
        at = self.clock()
        return {'time_s': at, 'state': self.state,
                'threads': {'1': [at if process['pid'] in self.busy else 0.0, 0.0], '2': [0.0, 0.0]}}
