"""The processes of a job, found in ``/proc`` by a marker that each of them carries in its environment.

Bodies of jobs may import this module, so it imports neither mxnet nor horovod.
"""
import contextlib
import os
import runpy
import signal
import time
import uuid
from pathlib import Path
from typing import NamedTuple

# The package imports MXNet; this module of it does not.
_PROC = runpy.run_path(str(Path(__file__).resolve().parents[2] / 'mxhybrid' / 'base' / 'proc.py'))
pids, read_environ = _PROC['pids'], _PROC['read_environ']
read_stat, state_and_start = _PROC['read_stat'], _PROC['state_and_start']

MARKER = 'MXHYBRID_LAB_JOB'

# One beginning for the markers of all jobs of this process; a process of a job may have jobs of its own.
SESSION = '/'.join(filter(None, [os.environ.get(MARKER), uuid.uuid4().hex[:12]]))

#: Limits of time of tests and jobs are multiplied by it: they end jobs that hang, and a machine may be slow.
PATIENCE = float(os.environ.get('MXHYBRID_TEST_PATIENCE') or 1)

GRACE_S = 5.0 * PATIENCE  # processes may end this long after their launcher
POLL_S = 0.05


class JobFailed(AssertionError):
    """A job did not end, or left processes behind; the message shows the last output of its processes."""


class Process(NamedTuple):
    """A running process of a job."""

    pid: int
    #: 'worker', 'server', 'scheduler', or 'launcher': the launcher itself, its shells and its middlemen.
    role: str
    cmdline: str

    @property
    def environ(self):
        """dict: the environment that the process was started with, empty once it has gone."""
        return read_environ(self.pid)

    @property
    def rank(self):
        """int or None: Horovod's rank, else DMLC's task id; None where the environment names neither."""
        environ = self.environ
        for name in ('HOROVOD_RANK', 'DMLC_TASK_ID'):
            if environ.get(name, '').isdigit():
                return int(environ[name])
        return None


def new_marker():
    """Return a new value of the marker, for another job of this process."""
    return '%s/%s' % (SESSION, uuid.uuid4().hex[:12])


def _state(pid):
    return state_and_start(pid)[0] or '-'


def pids_of(marker):
    """Process ids, ascending, of a job, or of all whose marker begins so; zombies are left out, this process is not."""
    return [pid for pid in sorted(pids())
            if read_environ(pid).get(MARKER, '').startswith(marker) and _state(pid) not in 'ZX-']


def _role(argv, environ, body):
    # DMLC_ROLE comes from launch.py, MXHYBRID_ROLE from mxhybrid, which starts its servers itself under horovodrun.
    for name in ('DMLC_ROLE', 'MXHYBRID_ROLE'):
        if environ.get(name) in ('server', 'scheduler'):
            return environ[name]
    runs_body = body is not None and os.path.basename(argv[0]).startswith('python') and argv[1:2] == [body]
    return 'worker' if runs_body else 'launcher'


def read_command(pid):
    """Return the words of the command line of a process; one that has gone, and a zombie, have none."""
    try:
        content = Path('/proc/%d/cmdline' % pid).read_bytes().rstrip(b'\0').decode(errors='replace')
    except OSError:
        return []
    return content.split('\0') if content else []


def find_processes(marker, body=None):
    """Return the other processes of a job, by process id; workers are recognised by the path of their script `body`."""
    processes = []
    for pid in pids_of(marker):
        if pid != os.getpid():
            argv = read_command(pid) or ['']
            processes.append(Process(pid, _role(argv, read_environ(pid), body), ' '.join(argv)))
    return processes


def format_processes(processes):
    """str: a line for each process."""
    return '\n'.join(f'  pid {p.pid:<7} {p.role:<9} state {_state(p.pid)}  {p.cmdline:.200}'
                     for p in processes) or '  (none)'


def send_signal(pid, number):
    """Send a signal to a process that may have gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_processes(marker, timeout=10.0):
    """Kill every process of a job by process id, again and again until none is left (they may be forking)."""
    deadline = time.monotonic() + timeout
    while True:
        left = find_processes(marker)
        if not left:
            return
        if time.monotonic() > deadline:
            raise JobFailed('processes survive SIGKILL:\n' + format_processes(left))
        for process in left:
            send_signal(process.pid, signal.SIGKILL)
        time.sleep(POLL_S)


def assert_no_processes_left(marker, grace=GRACE_S, body=None, said=''):
    """Fail, naming and killing them, if processes of a job still run after a grace in seconds; `said` is shown."""
    deadline = time.monotonic() + grace
    left = find_processes(marker, body)
    while left and time.monotonic() < deadline:
        time.sleep(POLL_S)
        left = find_processes(marker, body)
    if left:
        table = format_processes(left)
        kill_processes(marker)
        raise JobFailed(f'processes still running {grace:g} s after their launcher ended:\n{table}\n{said}')
