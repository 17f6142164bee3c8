"""Starts small jobs through each launcher on this host, watches them, and leaves nothing of them behind."""
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import uuid
from typing import Any, Callable, Dict, Iterator, List, Tuple

from ..processes import describe_status, free_port
from .findings import interpreter, package_environment
from .setting_checks import known_variables

#: Environment variable by which the processes of a job are known, whoever started them.
MARKER = 'MXHYBRID_SELFTEST'

#: Variables of the caller's job that one of our own must not inherit; mxhybrid's settings come on top.
_NOT_INHERITED = ('HOROVOD_', 'DMLC_', 'PS_', 'OMPI_', 'PMI_', 'PMIX_')

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
    """The processes that MXNet's ``launch.py -n workers -s 1 --launcher local`` starts, with its variables.

    launch.py itself is in no package that works on CPython 3.9 or newer.
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


def _begin() -> None:
    """In a new process: be told to end when the one that started it dies, even of SIGKILL; take signals again."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)


def _start(argv: List[str], **how: Any) -> Any:
    """Start a process; signals wait meanwhile: Python drops what their handlers raise in the midst of a fork."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        return subprocess.Popen(argv, preexec_fn=_begin, **how)
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


def _signal(pids: List[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def end(token: str, started: List['subprocess.Popen[bytes]']) -> None:
    """End every process of a job: SIGTERM, then SIGKILL until none is left."""
    _signal(members(token), signal.SIGTERM)
    deadline = time.monotonic() + _TERM_S
    while True:
        for process in started:
            process.poll()
        left = members(token)
        if not left:
            break
        if time.monotonic() > deadline + _KILL_S:
            sys.stderr.write('mxhybrid: processes %s do not end, not even killed\n' % left)
            break
        if time.monotonic() > deadline:
            _signal(left, signal.SIGKILL)
        time.sleep(_LOOK_S)


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Have SIGTERM and SIGHUP leave the block as Ctrl-C does."""
    def leave(number, frame):
        sys.exit(128 + number)

    before = {number: signal.getsignal(number) for number in _STOP_SIGNALS[1:]}
    for number in before:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_job(launcher: str, job: List[str], workers: int, seconds: float, log: str) -> str:
    """Run a job to its end; whatever happens, no process of it is left.

    Parameters
    ----------
    launcher : str
        One of `LAUNCHERS`.
    job : list of str
        Arguments of the Python interpreter.
    workers : int
    seconds : float
        Deadline.
    log : str
        File for the output of all processes, which run in its directory.

    Returns
    -------
    str
        What went wrong, empty if nothing did.
    """
    parts = LAUNCHERS[launcher][0](interpreter() + job, workers)
    token = uuid.uuid4().hex
    env = {name: value for name, value in package_environment().items()
           if not name.startswith(_NOT_INHERITED) and name not in known_variables()}
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
        with _undisturbed():
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
