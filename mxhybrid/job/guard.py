"""A worker's part in the watch over its job: its lifeline, worker 0's monitor, its servers, and how it fails."""
import os
import socket
from typing import Any, Callable, Dict, List, Optional, Tuple

from ..base.sealed import new_secret
from ..base.settings import Settings
from ..telemetry.session import Session
from ..watchdog.deadline import Deadline
from ..watchdog.leaving import leave
from ..watchdog.lifeline import Lifeline
from ..watchdog.monitor import Monitor
from .server_processes import ServerProcesses
from .launch_py_processes import end_processes_of_job


class Guard:
    """What must hear of a failure, or not be left behind, as launch.py's `scheduler`; grows while the job is joined."""

    def __init__(self, settings: Settings, telemetry: Session, scheduler: Optional[Tuple[str, int]]):
        self._settings, self._telemetry, self._scheduler = settings, telemetry, scheduler
        self._name = ''
        self._servers: Optional[ServerProcesses] = None
        #: In worker 0.
        self.monitor: Optional[Monitor] = None
        self.lifeline: Optional[Lifeline] = None

    def open_monitor(self, address: str, workers: int, servers: int) -> str:
        """In worker 0: watch the job, at `address`; returns the secret of those that may join the watch."""
        secret = new_secret()
        self.monitor = Monitor(address, workers, servers, secret, self._settings.limits)
        if self._scheduler is not None:
            self.monitor.watch_scheduler(self._scheduler, self._settings.limits.silence)
        self._telemetry.collect(self.monitor, workers)
        return secret

    def connect(self, monitor: List[Any], rank: int, secret: str) -> None:
        """Join the watch as the worker `rank`."""
        self._name = 'worker %d (host %s, pid %d)' % (rank, socket.gethostname(), os.getpid())
        self.lifeline = Lifeline((monitor[0], monitor[1]), self._name, rank, self._settings.timeout, secret,
                                 self._cleanup)

    def start_servers(self, environment: Dict[str, str], roles: List[str], secret: str) -> None:
        """Start the scheduler or servers that this worker brings with it, and end the job when one of them dies."""
        assert self.lifeline is not None
        self._servers = ServerProcesses(environment, self._server_died)
        for role in roles:
            self._servers.start(role, secret)
        self.lifeline.send({'servers': self._servers.pids()})
        self._servers.watch()

    def deadline(self, seconds: float, waiting_for: str) -> Deadline:
        """Around what waits in native code; if it takes too long, the job ends."""
        return Deadline(seconds, waiting_for, self._cleanup, tell=self.tell)

    def tell(self, text: str) -> None:
        """Tell the job, if this worker has joined the watch over it, that it fails with `text`."""
        if self.lifeline is not None:
            self.lifeline.fail(text)

    def fail(self, text: str, echo: bool) -> None:
        """Tell the job that this worker fails, and leave without waiting for anybody."""
        self._telemetry.fail(text)
        if self.lifeline is not None:
            self.lifeline.fail(text, echo)
        if self.monitor is not None:
            # The monitor's thread ends with this process, perhaps before it reads what was sent.
            self.monitor.report_failure('%s failed: %s' % (self._name, text))
        leave(cleanup=self._cleanup)

    def fails_with(self, what: str = '') -> Callable[[BaseException], None]:
        """What threads of this process call with an exception that ends their work."""
        return lambda error: self.fail('%s%s: %s' % (what, type(error).__name__, error), echo=True)

    def expect_end(self) -> None:
        """From now on the children may end by themselves."""
        if self._servers is not None:
            self._servers.expect_end()

    def wait_for_exit(self) -> None:
        """Wait for the children to end."""
        if self._servers is not None:
            self._servers.wait_for_exit()

    def _server_died(self, text: str) -> None:
        assert self.lifeline is not None
        self._telemetry.fail(text)
        self.lifeline.send({'server_died': text})
        if self.monitor is not None:
            self.monitor.report_failure(text)
        leave('%s ends, because %s' % (self._name, text), cleanup=self._cleanup)

    def _cleanup(self) -> None:
        """Before leaving on a failure: end what would otherwise wait for ever."""
        if self.monitor is not None:
            self.monitor.settle()
        self._telemetry.wait()
        if self._servers is not None:
            self._servers.end()
        if self._scheduler is not None:
            end_processes_of_job(self._scheduler, ('scheduler', 'server'))
