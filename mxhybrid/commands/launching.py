"""Runs small jobs through each launcher on this host, and ends all of their processes."""
import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
import time
import uuid
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from ..base import proc
from ..base.launcher import OF_HOROVODRUN, OF_LAUNCH_PY, OF_OTHERS
from ..base.machine import describe_status
from ..messaging.addresses import reserve_port
from .checks.processes import interpreter, package_environment
from .checks.settings import known_variables

#: Environment variable that marks the processes of a job.
MARKER = 'MXHYBRID_SELFTEST'
#: Seconds from SIGTERM to SIGKILL, from there until giving up, and for the others to report after one process failed.
_TERM_S, _KILL_S, _ECHO_S = 6.0, 10.0, 3.0
_LOOK_S = 0.05

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
#: A process to start: role, command line, additional environment variables.
Process = Tuple[str, List[str], Dict[str, str]]


LAUNCHERS = ('python', 'horovodrun', 'mxhybrid run', 'launch.py')


def _processes(launcher: str, job: List[str], workers: int, scheduler_port: int) -> List[Process]:
    """Return the processes by which one of `LAUNCHERS` starts a job.

    Those of launch.py are what MXNet's ``launch.py -n workers -s 1 --launcher local`` starts, with its variables:
    launch.py itself is in no package that works on CPython 3.9 or newer.
    """
    number = ['-np', str(workers)]
    if launcher == 'python':
        return [('the process', job, {})]
    if launcher == 'horovodrun':
        return [('horovodrun', interpreter() + ['-m', 'horovod.runner.launch', *number, '--gloo'] + job, {})]
    if launcher == 'mxhybrid run':
        return [('mxhybrid run', interpreter() + ['-m', 'mxhybrid', 'run', *number, '--reset-limit', '0'] + job, {})]
    shared = {'DMLC_PS_ROOT_URI': '127.0.0.1', 'DMLC_PS_ROOT_PORT': str(scheduler_port),
              'DMLC_NODE_HOST': '127.0.0.1', 'DMLC_NUM_WORKER': str(workers), 'DMLC_NUM_SERVER': '1',
              'DMLC_JOB_CLUSTER': 'local'}
    roles = [('scheduler', 0), ('server', 0)] + [('worker', task) for task in range(workers)]
    return [('%s %d' % (role, task) if role == 'worker' else role, job,
             dict(shared, DMLC_ROLE=role, DMLC_TASK_ID=str(task))) for role, task in roles]


def _begin(parent: int) -> None:
    """Prepare a new process: it gets SIGTERM when the one that started it dies, even by SIGKILL; unblock signals."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # the parent died before the call above
        os._exit(128 + signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)


def _start(argv: List[str], **how: Any) -> Any:
    """Start a process with signals blocked: Python drops exceptions that their handlers raise during a fork."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        return subprocess.Popen(argv, preexec_fn=functools.partial(_begin, os.getpid()), **how)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)


def members(token: str) -> List[int]:
    """Return the process ids of a job's processes, without zombies."""
    return [pid for pid in proc.pids()
            if pid != os.getpid() and proc.is_own(pid) and proc.read_environ(pid).get(MARKER) == token]


def _alive(token: str, started: List['subprocess.Popen[bytes]']) -> List[int]:
    """Return `members`, and running processes of `started`, whose variables cannot be read for a moment at first."""
    running = [process.pid for process in started if process.poll() is None]
    return sorted(set(running + members(token)))


def _signal(pids: List[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def end(token: str, started: List['subprocess.Popen[bytes]']) -> None:
    """End every process of a job by SIGTERM, then by SIGKILL until none is left."""
    _signal(_alive(token, started), signal.SIGTERM)
    deadline = time.monotonic() + _TERM_S
    while True:
        alive = _alive(token, started)
        if not alive:
            break
        if time.monotonic() > deadline + _KILL_S:
            sys.stderr.write('mxhybrid: processes %s do not end, not even by SIGKILL\n' % alive)
            break
        if time.monotonic() > deadline:
            _signal(alive, signal.SIGKILL)
        time.sleep(_LOOK_S)


@contextlib.contextmanager
def handled(numbers: Sequence[int], handler: Any) -> Iterator[None]:
    """Install a signal handler for the duration of the block."""
    former_handlers = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in former_handlers.items():
            signal.signal(number, former)


def run_job(launcher: str, job: List[str], workers: int, seconds: float, log: str) -> str:
    """Run a job to its end, for at most `seconds`; in any case none of its processes is left.

    `launcher` is one of `LAUNCHERS`, `job` are the arguments of the Python interpreter, and `log` is a file for the
    output of all processes, which run in its directory.  Returns a description of the problem, empty if there is none.
    """
    reservation = reserve_port('127.0.0.1')
    processes = _processes(launcher, interpreter() + job, workers, reservation.getsockname()[1])
    token = uuid.uuid4().hex
    env = {name: value for name, value in package_environment().items()
           if not name.startswith(OF_HOROVODRUN + OF_LAUNCH_PY + OF_OTHERS) and name not in known_variables()}
    env.update({MARKER: token, 'PYTHONUNBUFFERED': '1', 'MXNET_STORAGE_FALLBACK_LOG_VERBOSE': '0'})
    env.setdefault('OMP_NUM_THREADS', '1')
    started: List['subprocess.Popen[bytes]'] = []
    try:
        with open(log, 'wb') as output:
            for _, argv, variables in processes:
                started.append(_start(argv, env=dict(env, **variables), stdin=subprocess.DEVNULL, stdout=output,
                                      stderr=subprocess.STDOUT, start_new_session=True, cwd=os.path.dirname(log)))
        return _watch([role for role, _, _ in processes], started, seconds)
    finally:
        with handled(_STOP_SIGNALS, signal.SIG_IGN):
            end(token, started)
        reservation.close()


def _watch(roles: List[str], started: List['subprocess.Popen[bytes]'], seconds: float) -> str:
    """Wait until all processes have ended, or one has failed; return a description of the problem."""
    failing, deadline = False, time.monotonic() + seconds
    while True:
        statuses = [process.poll() for process in started]
        if any(statuses) and not failing:
            failing = True
            deadline = min(deadline, time.monotonic() + _ECHO_S)
        if all(status is not None for status in statuses) or time.monotonic() > deadline:
            break
        time.sleep(_LOOK_S)
    failed = [(role, status) for role, status in zip(roles, statuses) if status]
    # A worker that fails ends the servers and the scheduler by SIGTERM: they are not the cause.
    failed = [pair for pair in failed if pair[1] != -signal.SIGTERM] or failed
    if not failed and any(status is None for status in statuses):
        return 'not ended after %g s' % seconds
    return ', '.join('%s ended with %s' % (role, describe_status(status)) for role, status in failed)
