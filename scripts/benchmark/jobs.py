"""Run the job of one contender: start all its processes, wait with a deadline, leave none behind."""
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from .measuring import MARKER, processes_of
from .worker import PARENT

SCRIPTS = Path(__file__).resolve().parents[1]

#: Settings of the shell that would reach into a job; --env passes on what is wanted. MXHYBRID_* stay.
_INHERITED = re.compile(r'(HOROVOD|DMLC|MXNET|PS|OMPI|PMI|PMIX|GLOO)_')
_POLL_S = 0.1
_FAREWELL_S = 60.0  # for servers, once the last worker has ended
_KILL_S = 10.0
_TAIL_LINES = 30

_FREE_PORT_S = 60.0
_FREE_PORT = 'import socket; s = socket.socket(); s.bind((%r, 0)); print(s.getsockname()[1])'


class JobFailed(RuntimeError):
    """A job did not come to its end; the message holds the last output of the process that failed."""


class _Process:
    """A process and the file that takes its output."""

    def __init__(self, label: str, argv: List[str], env: Dict[str, str], log: Path):
        self.label, self._log = label, log
        with open(str(log), 'wb') as output:
            # A session of its own: Ctrl-C reaches the benchmark alone, which ends the job in order.
            self._popen = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=output,
                                           stderr=subprocess.STDOUT, start_new_session=True)

    def poll(self) -> Optional[int]:
        """Exit status, None while it runs."""
        return self._popen.poll()

    def tail(self) -> str:
        """The last lines of its output."""
        lines = self.output().splitlines()[-_TAIL_LINES:]
        return '\n'.join('  | ' + line for line in lines) or '  (it said nothing)'

    def output(self) -> str:
        """All of its output."""
        return self._log.read_text(errors='replace')

    def close(self) -> None:
        """Reap it, once it was killed."""
        if self._popen.stdin is not None:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(_KILL_S)


class Job:
    """The processes of one job. A context manager, which ends them all.

    Parameters
    ----------
    place : places.Emulated or places.Loopback
    hosts, workers : int
        Hosts, and workers on each.
    timeout : float
        Seconds that the whole job may take.
    extra : dict of str to str
        Environment variables for all processes, which win over all others.
    check : callable
        Called again and again while the job waits; may raise.
    """

    def __init__(self, place: Any, hosts: int, workers: int, timeout: float, extra: Dict[str, str],
                 check: Callable[[], None]):
        self.place, self.hosts, self.workers, self._check = place, hosts, workers, check
        self._timeout, self._deadline = timeout, time.monotonic() + timeout
        self.directory = Path(tempfile.mkdtemp(prefix='mxhybrid-bench-'))
        self._name = uuid.uuid4().hex
        self._helpers: List[_Process] = []
        self._workers: List[_Process] = []
        env = {name: value for name, value in os.environ.items() if not _INHERITED.match(name)}
        env.update({MARKER: self._name, PARENT: str(os.getpid()), 'OMP_NUM_THREADS': '1', 'PYTHONUNBUFFERED': '1',
                    'PYTHONPATH': os.pathsep.join([str(SCRIPTS), str(SCRIPTS.parent)]),
                    'PYTHONFAULTHANDLER': '1', 'MXHYBRID_TIMEOUT': '%g' % timeout})
        self._env, self._extra = env, extra

    def __enter__(self) -> 'Job':
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            self._kill()
        finally:
            shutil.rmtree(str(self.directory), ignore_errors=True)

    # -- starting ----------------------------------------------------------------------------------------------

    def _start(self, label: str, host: int, argv: List[str], env: Dict[str, Any]) -> _Process:
        values = dict(self._env)
        values.update({name: str(value) for name, value in env.items()}, **self._extra)
        log = self.directory / (label.replace(' ', '') + '.log')
        return _Process('%s on %s' % (label, self.place.name(host)), self.place.argv(host, argv), values, log)

    def start_helper(self, label: str, host: int, argv: List[str], env: Dict[str, Any]) -> None:
        """Start a process that is to end after the workers."""
        self._helpers.append(self._start(label, host, argv, env))

    def start_worker(self, rank: int, argv: List[str], env: Dict[str, Any]) -> None:
        """Start a worker; ranks are grouped by host."""
        self._workers.append(self._start('worker %d' % rank, rank // self.workers, argv, env))

    def free_port(self) -> int:
        """A TCP port that the system says is free on the first host."""
        code = _FREE_PORT % self.place.address(0)
        try:
            done = subprocess.run(self.place.argv(0, [sys.executable, '-c', code]), stdout=subprocess.PIPE, check=True,
                                  timeout=_FREE_PORT_S, start_new_session=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise JobFailed('no free port on %s: %s' % (self.place.name(0), error)) from error
        return int(done.stdout)

    def start_rendezvous(self) -> int:
        """Start Horovod's rendezvous on the first host; returns its port."""
        file = self.directory / 'rendezvous'
        names = [self.place.name(host) for host in range(self.hosts)]
        grouping = {'names': names, 'workers': self.workers}
        if len(set(names)) == 1:  # one host in truth
            grouping = {'names': names[:1], 'workers': self.hosts * self.workers}
        self.start_helper('rendezvous', 0, [sys.executable, '-m', 'benchmark.rendezvous', json.dumps(grouping),
                                            str(file)], {})
        self._wait_until(file.exists, 'Horovod\'s rendezvous')
        return int(file.read_text())

    # -- waiting -----------------------------------------------------------------------------------------------

    def _wait_until(self, condition: Any, what: str, deadline: Optional[float] = None) -> None:
        deadline = self._deadline if deadline is None else deadline
        while not condition():
            self._check()
            for process in self._workers + self._helpers:
                if process.poll():
                    raise JobFailed('%s ended with status %d:\n%s' % (process.label, process.poll(), process.tail()))
            if time.monotonic() > deadline:
                running = [process for process in self._workers + self._helpers if process.poll() is None]
                raise JobFailed('gave up waiting for %s (--timeout %g); still running: %s. The first one says:\n%s'
                                % (what, self._timeout, ', '.join(process.label for process in running),
                                   running[0].tail() if running else '  (none)'))
            time.sleep(_POLL_S)

    def wait(self) -> None:
        """Wait until all workers have ended with 0.

        Raises
        ------
        JobFailed
            One did not, or time is up.
        """
        self._wait_until(lambda: all(worker.poll() == 0 for worker in self._workers), 'the workers to end')

    def wait_for_helpers(self) -> None:
        """Wait until servers have ended, too."""
        servers = [helper for helper in self._helpers if not helper.label.startswith('rendezvous')]
        self._wait_until(lambda: all(server.poll() == 0 for server in servers), 'the servers to end',
                         time.monotonic() + _FAREWELL_S)

    def outputs(self) -> List[str]:
        """What each worker wrote."""
        return [worker.output() for worker in self._workers]

    def readings(self) -> List[Dict[str, Any]]:
        """What each worker left."""
        return [json.loads((self.directory / ('rank%d.json' % rank)).read_text())
                for rank in range(len(self._workers))]

    def _kill(self) -> None:
        self.place.kill_processes()
        deadline = time.monotonic() + _KILL_S
        while True:
            left = processes_of(self._name)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                break
            if time.monotonic() > deadline:
                raise JobFailed('processes survive SIGKILL: %s' % sorted(left))
            time.sleep(_POLL_S)
        for process in self._workers + self._helpers:
            process.close()
