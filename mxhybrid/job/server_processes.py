"""Starts, watches and ends the scheduler and servers that workers under horovodrun bring with them."""
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from typing import Any, Callable, Dict, List, Tuple

from ..base import launcher
from ..base.machine import describe_status

#: Seconds that servers get to leave by themselves after the last worker has.
EXIT_GRACE_S = 10.0
#: Seconds between two looks at the children.
_CHECK_S = 0.2


def child_program(module: str) -> str:
    """A program for ``python -c`` that runs a module, and dies with the process that ``MXHYBRID_PARENT`` names.

    The kernel sees to that (PR_SET_PDEATHSIG of linux/prctl.h), from before MXNet is imported, which takes seconds.
    It imports from where this process does, before anything else: ``-c`` by itself looks into the working directory
    first.
    """
    return '\n'.join(['import sys',
                      'sys.path[:] = %r' % [entry for entry in sys.path if isinstance(entry, str)],
                      'import ctypes, os, runpy, signal',
                      'ctypes.CDLL(None).prctl(1, signal.SIGKILL)',
                      'if os.getppid() != int(os.environ["MXHYBRID_PARENT"]):',
                      '    sys.exit("the process that started this one is gone")',
                      'runpy.run_module(%r, run_name="__main__", alter_sys=True)' % module])


class ServerProcesses:
    """Scheduler and server processes of one worker, started and watched by a thread that lives as long as the process.

    For the kernel the parent of a process, with which it dies, is the thread that started it.  `environment` has their
    ``DMLC_*`` and ``MXHYBRID_*`` variables; `on_death` is called with a sentence when one ends before :meth:`wait_for_exit`.
    """

    def __init__(self, environment: Dict[str, str], on_death: Callable[[str], None]):
        self._environment, self._on_death = environment, on_death
        self._processes: List[Tuple[str, subprocess.Popen]] = []
        self._watched = self._leaving = self._parted = False
        self._orders: 'queue.SimpleQueue[Tuple[List[str], Dict[str, str], Future]]' = queue.SimpleQueue()
        threading.Thread(target=self._run, name='mxhybrid-servers', daemon=True).start()

    def start(self, role: str, secret: str) -> None:
        """Start one process as `role`, 'scheduler' or 'server', and tell it the job's secret, as nobody else."""
        # With the variables of a worker a server would believe that it is one.
        env = {name: value for name, value in os.environ.items() if not name.startswith(launcher.OF_HOROVODRUN)}
        env.pop('DMLC_ROLE', None)
        env.update(self._environment)
        env.setdefault('OMP_NUM_THREADS', '1')
        env['MXHYBRID_ROLE'] = role
        env['MXHYBRID_SECRET'] = secret
        env['MXHYBRID_PARENT'] = str(os.getpid())
        started: 'Future[subprocess.Popen]' = Future()
        self._orders.put(([sys.executable, '-c', child_program('mxhybrid.servers.main')], env, started))
        self._processes.append((role, started.result()))

    def pids(self) -> List[List[Any]]:
        """Role and process id of each."""
        return [[role, process.pid] for role, process in self._processes]

    def watch(self) -> None:
        """Notice the death of a child from now on."""
        self._watched = True

    def _run(self) -> None:
        while True:
            try:
                command, env, started = self._orders.get(timeout=None if self._parted else _CHECK_S)
            except queue.Empty:
                if self._watched:
                    self._check()
                continue
            try:
                started.set_result(subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL))
            except BaseException as error:  # for whoever waits for it
                started.set_exception(error)
            del command, env, started  # or this thread would keep the secret

    def _check(self) -> None:
        for role, process in self._processes:
            status = process.poll()
            if status is not None and not self._parted and not (status == 0 and self._leaving):
                self._watched = False
                # A moment for the monitor, which may know more: an error that the server itself reported.
                time.sleep(0.5)
                self._on_death('the %s with pid %d on host %s ended with %s'
                               % (role, process.pid, socket.gethostname(), describe_status(status)))
                return

    def expect_end(self) -> None:
        """From now on the children may end, with status 0."""
        self._leaving = True

    def end(self) -> None:
        """After a failure: end those that still run, also one that is stopped, and would hold launchers' pipes open."""
        self._parted = True
        for _, process in self._processes:
            process.kill()

    def wait_for_exit(self) -> None:
        """Wait for the children to end by themselves, end those that do not."""
        self._parted = True
        deadline = time.monotonic() + EXIT_GRACE_S
        for _, process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
