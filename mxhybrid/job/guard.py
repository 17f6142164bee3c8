"""The guard of a worker: its lifeline, worker 0's monitor, the servers that it started, and its way to fail."""
import os
import socket
from typing import Any, Callable, Dict, List, Optional, Tuple

from ..base.settings import Settings
from ..messaging.sealed import new_secret
from ..telemetry.session import Session
from ..watchdog.leaving import Deadline, leave
from ..watchdog.lifeline import Lifeline
from ..watchdog.monitor import Monitor
from .launch_py_processes import end_processes_of_job
from .server_processes import ServerProcesses, started


class Guard:
    """The connections and processes to notify or end when this worker fails, such as launch.py's `scheduler`.

    They are added while the worker joins its job.
    """

    def __init__(self, settings: Settings, telemetry: Session, scheduler: Optional[Tuple[str, int]]):
        self._settings, self._telemetry, self._scheduler = settings, telemetry, scheduler
        self._name = ''
        self._servers: Optional[ServerProcesses] = None
        #: The job monitor, in worker 0 only.
        self.monitor: Optional[Monitor] = None
        self.lifeline: Optional[Lifeline] = None

    def open_monitor(self, address: str, workers: int, servers: int) -> str:
        """Start the job monitor at `address`, in worker 0, and return the secret that admits processes to it."""
        secret = new_secret()
        self.monitor = Monitor(address, workers, servers, secret, self._settings.limits)
        if self._scheduler is not None:
            self.monitor.watch_scheduler(self._scheduler, self._settings.limits.silence)
        self._telemetry.collect(self.monitor, workers)
        return secret

    def connect(self, monitor: List[Any], rank: int, secret: str) -> None:
        """Connect to the job monitor as the worker `rank`."""
        self._name = 'worker %d (host %s, pid %d)' % (rank, socket.gethostname(), os.getpid())
        self.lifeline = Lifeline((monitor[0], monitor[1]), self._name, rank, self._settings.timeout, secret,
                                 self._cleanup)

    def start_servers(self, roles: List[str]) -> None:
        """Start the scheduler and servers of this worker, which wait for :meth:`configure_servers`."""
        if roles:
            self._servers = started(roles)

    def configure_servers(self, environment: Dict[str, str], roles: List[str], secret: str) -> None:
        """Let the scheduler and servers of this worker begin, and end the job if one of them dies."""
        assert self.lifeline is not None
        if self._servers is not None and self._servers.roles != roles:  # Horovod did not give the expected ranks
            self.end_servers()
        if self._servers is None:
            self.start_servers(roles)
        if self._servers is not None:
            self._servers.configure(environment, secret)
            self.lifeline.send({'servers': self._servers.pids()})
            self._servers.watch(self._server_died)

    def end_servers(self) -> None:
        """End the scheduler and servers of this worker, which has joined no job."""
        if self._servers is not None:
            self._servers.end()
            self._servers.wait_for_exit()
            self._servers = None

    def deadline(self, seconds: float, waiting_for: str) -> Deadline:
        """Return a deadline for a block that waits in native code; the job ends if it takes too long."""
        return Deadline(seconds, waiting_for, self._cleanup, tell=self.tell)

    def tell(self, text: str) -> None:
        """Report to the job monitor, if this worker has connected to it, that this worker fails with `text`."""
        if self.lifeline is not None:
            self.lifeline.fail(text)

    def fails_like_another(self, text: str) -> bool:
        """Report that this worker fails with `text`; return whether another process has failed before with it."""
        self._telemetry.fail(text)
        return self.lifeline is not None and self.lifeline.fails_like_another(text)

    def fail(self, text: str, echo: bool, is_written: bool = False) -> None:
        """Report that this worker fails, and end it without waiting for other processes; write why, if need be."""
        self._telemetry.fail(text)
        if self.lifeline is not None:
            self.lifeline.fail(text, echo)
        reason = '%s failed: %s' % (self._name, text)
        if self.monitor is not None:
            # The monitor's thread ends with this process, perhaps before it reads the lifeline's message.
            self.monitor.report_failure(reason, writer=self._name)
        leave('' if is_written else reason, cleanup=self._cleanup)

    def fails_with(self, prefix: str = '') -> Callable[[BaseException], None]:
        """Return a function for threads to call with an exception that ends their work."""
        return lambda error: self.fail('%s%s: %s' % (prefix, type(error).__name__, error), echo=True)

    def expect_end(self) -> None:
        """Allow the servers to end by themselves from now on."""
        if self._servers is not None:
            self._servers.expect_end()

    def wait_for_exit(self) -> None:
        if self._servers is not None:
            self._servers.wait_for_exit()

    def _server_died(self, text: str) -> None:
        assert self.lifeline is not None
        self.lifeline.send({'server_died': text})
        # A server whose host is cut off from the monitor may end before this worker has noticed the silence.
        text = self.lifeline.suspected_silence() or text
        self._telemetry.fail(text)
        if self.monitor is not None:
            self.monitor.report_failure(text, writer=self._name)
        leave('%s ends, because %s' % (self._name, text), cleanup=self._cleanup)

    def _cleanup(self) -> None:
        """End, after a failure, all that would otherwise wait for ever."""
        if self.monitor is not None:
            self.monitor.settle()
        self._telemetry.wait()
        if self._servers is not None:
            self._servers.end()
        if self._scheduler is not None:
            end_processes_of_job(self._scheduler, ('scheduler', 'server'))
