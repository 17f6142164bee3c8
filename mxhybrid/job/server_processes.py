"""Start, watch and end the scheduler and the servers, which workers start themselves under horovodrun."""
import contextlib
import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from typing import Any, Callable, Dict, List, Tuple

from ..base import launcher
from ..base.machine import describe_status, hint_at_status

#: Seconds for servers to end by themselves after the last worker has left.
EXIT_GRACE_S = 10.0
#: Seconds for processes that were started early to import their modules.
IMPORT_S = 120.0
#: Seconds between two checks of the processes.
_CHECK_S = 0.2


def child_program(module: str) -> str:
    """Return a program for ``python -c`` that runs a module, and dies with the process that ``MXHYBRID_PARENT`` names.

    The kernel kills it (PR_SET_PDEATHSIG of linux/prctl.h), also while it imports MXNet, which takes seconds.  It takes
    the import path of this process first: ``-c`` by itself would begin with the working directory.
    """
    return '\n'.join(['import sys',
                      'sys.path[:] = %r' % [entry for entry in sys.path if isinstance(entry, str)],
                      'import ctypes, os, runpy, signal',
                      'ctypes.CDLL(None).prctl(1, signal.SIGKILL)',
                      'if os.getppid() != int(os.environ["MXHYBRID_PARENT"]):',
                      '    sys.exit("the process that started this one is gone")',
                      'runpy.run_module(%r, run_name="__main__", alter_sys=True)' % module])


#: Module of each role.
_MODULES = {'scheduler': 'mxhybrid.servers.scheduler', 'server': 'mxhybrid.servers.main'}


class ServerProcesses:
    """The scheduler and the servers of one worker, given by their `roles`: 'scheduler' or 'server'.

    A process is started first and told its job later, in a line on its standard input, so that it imports its modules
    while the workers connect.  The line also holds the secret of the job, which no environment has.  A process whose
    standard input ends before that line ends, too.  The standard input is a socket, on which the process writes a line
    before it waits.

    A thread that lives as long as this process starts and watches them: for the kernel the parent of a process, with
    which it dies, is the thread that started it.
    """

    def __init__(self, roles: List[str]):
        self.roles = roles
        self._on_death: Callable[[str], None] = lambda text: None
        #: The environment of all processes.
        self.environment = _environment()
        self._processes: List[Tuple[str, subprocess.Popen]] = []
        #: The other end of the standard input of each process.
        self._inputs: List[socket.socket] = []
        self._is_watching = self._may_end = self._is_closed = False
        #: Processes to start: command line, environment, standard input, and the future of the process.
        self._requests: 'queue.SimpleQueue[Tuple[List[str], Dict[str, str], int, Future]]' = queue.SimpleQueue()
        threading.Thread(target=self._run, name='mxhybrid-servers', daemon=True).start()
        for role in roles:
            self._start(role)

    def _start(self, role: str) -> None:
        """Start a process, which waits for :meth:`configure`."""
        env = {'OMP_NUM_THREADS': '1', **self.environment, 'MXHYBRID_ROLE': role, 'MXHYBRID_PARENT': str(os.getpid())}
        started: 'Future[subprocess.Popen]' = Future()
        own_end, end_of_process = socket.socketpair()
        self._inputs.append(own_end)
        with end_of_process:
            self._requests.put(([sys.executable, '-c', child_program(_MODULES[role])], env, end_of_process.fileno(),
                                started))
            self._processes.append((role, started.result()))

    def wait_for_imports(self) -> None:
        """Wait until all processes have imported their modules or have ended, for :data:`IMPORT_S` at most."""
        deadline = time.monotonic() + IMPORT_S
        for own_end in self._inputs:
            select.select([own_end], [], [], max(0.0, deadline - time.monotonic()))

    def configure(self, environment: Dict[str, str], secret: str) -> None:
        """Let all processes begin, with the job's ``DMLC_*`` and ``MXHYBRID_*`` variables and its secret."""
        line = json.dumps({'environment': environment, 'secret': secret}) + '\n'
        for own_end in self._inputs:
            with contextlib.suppress(OSError):  # watch() reports one that has ended
                own_end.sendall(line.encode())
                own_end.shutdown(socket.SHUT_WR)  # to close it would reset the connection: the process may write

    def pids(self) -> List[List[Any]]:
        """Return role and process id of each process."""
        return [[role, process.pid] for role, process in self._processes]

    def watch(self, on_death: Callable[[str], None]) -> None:
        """Call `on_death` with a sentence if one of the processes ends before :meth:`wait_for_exit`."""
        self._on_death, self._is_watching = on_death, True

    def _run(self) -> None:
        while True:
            try:
                command, env, stdin, started = self._requests.get(timeout=None if self._is_closed else _CHECK_S)
            except queue.Empty:
                if self._is_watching:
                    self._check()
                continue
            try:
                started.set_result(subprocess.Popen(command, env=env, stdin=stdin))
            except BaseException as error:  # raised again in the thread that waits for the future
                started.set_exception(error)

    def _check(self) -> None:
        """Report a process that has ended before its time."""
        for role, process in self._processes:
            status = process.poll()
            if status is not None and not self._is_closed and not (status == 0 and self._may_end):
                self._is_watching = False
                if status != -signal.SIGKILL:
                    time.sleep(0.5)  # the monitor may receive the cause meanwhile: an error that the server reports
                self._on_death('the %s with pid %d on host %s ended with %s%s'
                               % (role, process.pid, socket.gethostname(), describe_status(status),
                                  hint_at_status(status)))
                return

    def expect_end(self) -> None:
        """Allow the processes to end with status 0 from now on."""
        self._may_end = True

    def end(self) -> None:
        """Kill the processes after a failure; one that is stopped, too, would hold pipes of the launcher open."""
        self._is_closed = True
        for _, process in self._processes:
            process.kill()

    def wait_for_exit(self) -> None:
        """Wait for the processes to end by themselves, and kill those that do not."""
        self._is_closed = True
        deadline = time.monotonic() + EXIT_GRACE_S
        for _, process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _environment() -> Dict[str, str]:
    """Return the variables of a server: with those of a worker it would take itself for one."""
    left_out = launcher.OF_HOROVODRUN + ('DMLC_ROLE', launcher.STANDBY)
    return {name: value for name, value in os.environ.items() if not name.startswith(left_out)}


#: The processes that were started before this worker joins a job.
_early: List[ServerProcesses] = []


def start_early(roles: List[str]) -> None:
    """Start processes for a job that this worker will join; see :meth:`ServerProcesses.wait_for_imports`."""
    if roles:
        _early.append(ServerProcesses(roles))
        _early[0].wait_for_imports()


def started(roles: List[str]) -> ServerProcesses:
    """Return processes with these roles: those that were started early, unless the script has changed the environment.
    """
    while _early:
        early = _early.pop()
        if early.roles == roles and early.environment == _environment():
            return early
        early.end()
        early.wait_for_exit()
    return ServerProcesses(roles)
