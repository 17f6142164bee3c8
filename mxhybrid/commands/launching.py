"""Starts small jobs through each launcher on this host, watches them, and leaves nothing of them behind."""
import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
import time
import uuid
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Sequence, Tuple

from ..base.addresses import free_port
from ..base.launcher import OF_HOROVODRUN, OF_LAUNCH_PY, OF_OTHERS
from ..base.machine import describe_status
from .checks.processes import interpreter, package_environment
from .checks.settings import known_variables

#: Environment variable by which the processes of a job are known, whoever started them.
MARKER = 'MXHYBRID_SELFTEST'
#: Seconds from SIGTERM to SIGKILL, from there to giving up, and for the others to say why after one process failed.
_TERM_S, _KILL_S, _ECHO_S = 6.0, 10.0, 3.0
_LOOK_S = 0.05

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
#: What is started: role, command line, variables of its own.
Part = Tuple[str, List[str], Dict[str, str]]


def python_parts(job: List[str], workers: int) -> List[Part]:
    """One process by itself."""
    return [('the process', job, {})]


def horovodrun_parts(job: List[str], workers: int) -> List[Part]:
    """What horovodrun is, by this interpreter."""
    command = interpreter() + ['-m', 'horovod.runner.launch', '-np', str(workers), '--gloo']
    return [('horovodrun', command + job, {})]


def launch_parts(job: List[str], workers: int) -> List[Part]:
    """The processes that MXNet's ``launch.py -n workers -s 1 --launcher local`` starts, with its variables; launch.py
    itself is in no package that works on CPython 3.9 or newer.
    """
    shared = {'DMLC_PS_ROOT_URI': '127.0.0.1', 'DMLC_PS_ROOT_PORT': str(free_port('127.0.0.1')),
              'DMLC_NODE_HOST': '127.0.0.1', 'DMLC_NUM_WORKER': str(workers), 'DMLC_NUM_SERVER': '1',
              'DMLC_JOB_CLUSTER': 'local'}
    roles = [('scheduler', 0), ('server', 0)] + [('worker', task) for task in range(workers)]
    return [('%s %d' % (role, task) if role == 'worker' else role, job,
             dict(shared, DMLC_ROLE=role, DMLC_TASK_ID=str(task))) for role, task in roles]


#: By name, and whether there may be several workers.
LAUNCHERS: Dict[str, Tuple[Callable[[List[str], int], List[Part]], bool]] = {
    'python': (python_parts, False), 'horovodrun': (horovodrun_parts, True), 'launch.py': (launch_parts, True)}


def _begin(parent: int) -> None:
    """In a new process: be told to end when the one that started it dies, even of SIGKILL; take signals again."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it has died before it could be asked for that
        os._exit(128 + signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)


def _start(argv: List[str], **how: Any) -> Any:
    """Start a process; signals wait meanwhile: Python drops what their handlers raise in the midst of a fork."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        return subprocess.Popen(argv, preexec_fn=functools.partial(_begin, os.getpid()), **how)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)


def members(token: str) -> List[int]:
    """Process ids of a job's processes, zombies left out."""
    wanted, found = ('%s=%s' % (MARKER, token)).encode(), []
    for entry in os.listdir('/proc'):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            if os.stat('/proc/' + entry).st_uid != os.getuid():
                continue
            with open('/proc/%s/environ' % entry, 'rb') as handle:
                # A zombie has no environment.
                if wanted in handle.read().split(b'\0'):
                    found.append(int(entry))
        except OSError:
            continue
    return found


def _left(token: str, started: List['subprocess.Popen[bytes]']) -> List[int]:
    """`members`, and of `started` those that show no variables yet, as a process does for a moment."""
    running = [process.pid for process in started if process.poll() is None]
    return sorted(set(running + members(token)))


def _signal(pids: List[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def end(token: str, started: List['subprocess.Popen[bytes]']) -> None:
    """End every process of a job: SIGTERM, then SIGKILL until none is left."""
    _signal(_left(token, started), signal.SIGTERM)
    deadline = time.monotonic() + _TERM_S
    while True:
        left = _left(token, started)
        if not left:
            break
        if time.monotonic() > deadline + _KILL_S:
            sys.stderr.write('mxhybrid: processes %s do not end, not even killed\n' % left)
            break
        if time.monotonic() > deadline:
            _signal(left, signal.SIGKILL)
        time.sleep(_LOOK_S)


@contextlib.contextmanager
def _handled(numbers: Sequence[int], handler: Any) -> Iterator[None]:
    """Have signals handled so within the block."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def stopped_by_signals() -> ContextManager[None]:
    """Have SIGTERM and SIGHUP leave the block as Ctrl-C does."""
    return _handled(_STOP_SIGNALS[1:], lambda number, frame: sys.exit(128 + number))


def run_job(launcher: str, job: List[str], workers: int, seconds: float, log: str) -> str:
    """Run a job to its end, in `seconds` at most; whatever happens, no process of it is left.

    `launcher` is one of `LAUNCHERS`, `job` the arguments of the Python interpreter, and `log` a file for the output of
    all processes, which run in its directory.  Returns what went wrong, empty if nothing did.
    """
    parts = LAUNCHERS[launcher][0](interpreter() + job, workers)
    token = uuid.uuid4().hex
    env = {name: value for name, value in package_environment().items()
           if not name.startswith(OF_HOROVODRUN + OF_LAUNCH_PY + OF_OTHERS) and name not in known_variables()}
    env.update({MARKER: token, 'PYTHONUNBUFFERED': '1', 'MXNET_STORAGE_FALLBACK_LOG_VERBOSE': '0'})
    env.setdefault('OMP_NUM_THREADS', '1')
    started: List['subprocess.Popen[bytes]'] = []
    try:
        with open(log, 'wb') as output:
            for _, argv, own in parts:
                started.append(_start(argv, env=dict(env, **own), stdin=subprocess.DEVNULL, stdout=output,
                                      stderr=subprocess.STDOUT, start_new_session=True, cwd=os.path.dirname(log)))
        problem = _watch([role for role, _, _ in parts], started, time.monotonic() + seconds)
        return problem if problem != _OUT_OF_TIME else 'not ended after %g s' % seconds
    finally:
        with _handled(_STOP_SIGNALS, signal.SIG_IGN):
            end(token, started)


_OUT_OF_TIME = 'out of time'


def _watch(roles: List[str], started: List['subprocess.Popen[bytes]'], deadline: float) -> str:
    """Wait until all processes have ended, or one has failed; returns what went wrong."""
    failing = False
    while True:
        statuses = [process.poll() for process in started]
        if any(statuses) and not failing:
            failing = True
            deadline = min(deadline, time.monotonic() + _ECHO_S)
        if all(status is not None for status in statuses) or time.monotonic() > deadline:
            break
        time.sleep(_LOOK_S)
    bad = [(role, status) for role, status in zip(roles, statuses) if status]
    # A worker that fails ends servers and scheduler: they are not the cause.
    bad = [pair for pair in bad if pair[1] != -signal.SIGTERM] or bad
    if not bad and any(status is None for status in statuses):
        return _OUT_OF_TIME
    return ', '.join('%s ended with %s' % (role, describe_status(status)) for role, status in bad)
