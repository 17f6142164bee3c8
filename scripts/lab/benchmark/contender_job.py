"""The job of one contender: all its processes, started one by one, waited for with a deadline, and none left behind."""
import json
import os
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Optional

from lab.jobs import Command, Job
from lab.processes import JobFailed

from . import links
from .interruption import PARENT

#: Variables of the shell that would change a job; --env passes some on. MXHYBRID_* are inherited.
_NOT_INHERITED = '(HOROVOD|DMLC|MXNET|PS|OMPI|PMI|PMIX|GLOO)_'
_FAREWELL_S = 60.0  # for servers, once the last worker has ended
_TAIL_LINES = 30

_PORT_S = 60.0
#: Holds a free port until its standard input ends.  A server that reuses addresses can listen on the port.
_RESERVE_PORT = """
import os, socket, sys
reservation = socket.socket()
reservation.bind((sys.argv[1], 0))
reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
with open(sys.argv[2] + '.part', 'w') as file:
    file.write(str(reservation.getsockname()[1]))
os.rename(file.name, sys.argv[2])
sys.stdin.read()
"""


class ContenderJob(Job):
    """The processes of one job on a testbed, with `workers` workers on each of `hosts` hosts.

    The whole job may take `timeout` seconds.  The environment variables `extra` win over all others.  `check` is called
    again and again while the job waits, and may raise.
    """

    def __init__(self, testbed: Any, hosts: int, workers: int, timeout: float, extra: Dict[str, str],
                 check: Callable[[], None]):
        super().__init__(_NOT_INHERITED, {PARENT: os.getpid(), 'MXHYBRID_TIMEOUT': '%g' % timeout})
        self.testbed, self.hosts, self.workers, self._check = testbed, hosts, workers, check
        self._timeout, self._deadline = timeout, time.monotonic() + timeout
        self._extra = extra
        self._helpers: List[Command] = []
        self._workers: List[Command] = []
        self._sampler: Any = None

    # -- starting ----------------------------------------------------------------------------------------------

    def _start(self, label: str, host: int, argv: List[str], env: Dict[str, Any]) -> Command:
        # Its standard input stays open as long as the benchmark lives.
        return self.start('%s on %s' % (label, self.testbed.name(host)), self.testbed.argv(host, argv),
                          dict(env, **self._extra), cwd=os.getcwd(), stdin=subprocess.PIPE)

    def start_helper(self, label: str, host: int, argv: List[str], env: Dict[str, Any]) -> None:
        """Start a process that is to end after the workers."""
        self._helpers.append(self._start(label, host, argv, env))

    def start_worker(self, rank: int, argv: List[str], env: Dict[str, Any]) -> None:
        """Start a worker; ranks are grouped by host."""
        self._workers.append(self._start('worker %d' % rank, rank // self.workers, argv, env))

    def reserve_port(self) -> int:
        """Return a TCP port of the first host that a process of this job holds until the job ends."""
        file, host = self.directory / 'port', self.testbed.name(0)
        try:
            self._start('the holder of a port', 0, [sys.executable, '-c', _RESERVE_PORT, self.testbed.address(0),
                                                    str(file)], {})
            self._wait_until(file.exists, 'a free port', time.monotonic() + _PORT_S)
        except (OSError, JobFailed) as error:
            raise JobFailed('no free port on %s: %s' % (host, error)) from error
        return int(file.read_text())

    def start_rendezvous(self) -> int:
        """Start Horovod's rendezvous on the first host; returns its port."""
        file = self.directory / 'rendezvous'
        names = [self.testbed.name(host) for host in range(self.hosts)]
        grouping = {'names': names, 'workers': self.workers}
        if len(set(names)) == 1:  # one host in truth
            grouping = {'names': names[:1], 'workers': self.hosts * self.workers}
        self.start_helper('rendezvous', 0, [sys.executable, '-m', 'lab.benchmark.rendezvous', json.dumps(grouping),
                                            str(file)], {})
        self._wait_until(file.exists, 'Horovod\'s rendezvous')
        return int(file.read_text())

    def start_sampler(self) -> None:
        """Start to sample the links of all hosts, until :meth:`samples`."""
        argv = self.testbed.switch_argv([sys.executable, '-m', 'lab.benchmark.links', str(self.hosts),
                                       str(self.directory / 'links')])
        self._sampler = self.start('sampler', argv, stdin=subprocess.PIPE)

    def samples(self) -> links.Samples:
        """End the sampler; return its samples."""
        assert self._sampler is not None
        self._sampler.end_input()
        self._wait_until(lambda: self._sampler.poll() == 0, 'the sampler to end')
        return links.read(str(self.directory / 'links'), self.hosts)

    # -- waiting -----------------------------------------------------------------------------------------------

    def over(self) -> str:
        """Name the process that failed, and show its output."""
        self._check()
        for command in self.commands:
            if command.poll():
                return '%s ended with status %d:\n%s' % (command.label, command.poll(), command.tail(_TAIL_LINES))
        return ''

    def explain(self, over: str, timeout: float, event: str) -> str:
        """Explain how a job ended, or why it ran out of time."""
        if over:
            return over
        running = [command for command in self.commands if command.poll() is None]
        return 'gave up waiting for %s (--timeout %g); still running: %s. The first one says:\n%s' % (
            event, self._timeout, ', '.join(command.label for command in running),
            running[0].tail(_TAIL_LINES) if running else '  (none)')

    def _wait_until(self, condition: Callable[[], Any], what: str, deadline: Optional[float] = None) -> None:
        self.wait_until(condition, (self._deadline if deadline is None else deadline) - time.monotonic(), what)

    def wait_for_file(self, name: str) -> None:
        """Wait until a worker has made a file in the job's directory."""
        self._wait_until((self.directory / name).exists, 'the workers to be warm')

    def wait(self) -> None:
        """Wait until all workers and then all servers have ended with 0; JobFailed if one did not, or if time is up."""
        self._wait_until(lambda: all(worker.poll() == 0 for worker in self._workers), 'the workers to end')
        servers = [helper for helper in self._helpers if not helper.label.startswith('rendezvous')]
        self._wait_until(lambda: all(server.poll() == 0 for server in servers), 'the servers to end',
                         time.monotonic() + _FAREWELL_S)

    def outputs(self) -> List[str]:
        """Return the output of each worker."""
        return [worker.output for worker in self._workers]

    def readings(self) -> List[Dict[str, Any]]:
        """Return the results of each worker."""
        return [json.loads((self.directory / ('rank%d.json' % rank)).read_text())
                for rank in range(len(self._workers))]

    def end(self) -> None:
        """Kill all processes of the job that are left, and all others on its hosts."""
        self.testbed.kill_processes()
        super().end()
