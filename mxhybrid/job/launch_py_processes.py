"""Finds and ends the processes of a ``launch.py`` job on this host, which MXNet's own launcher leaves behind."""
import contextlib
import os
import signal
from typing import Iterator, Tuple


def end_processes_of_job(scheduler: Tuple[str, int], roles: Tuple[str, ...]) -> None:
    """End the other processes on this host of the ``launch.py`` job with this `scheduler`, host and port.

    Under MXNet's own launcher nobody else would: its scheduler and servers wait for a dead worker for ever.
    A process belongs to the job when its environment names that scheduler, it runs as one of `roles`
    (``DMLC_ROLE``), for the same user and by the same interpreter.  What a worker has started has the same
    environment, but is its own business; what scheduler and servers have is the job's: a program that starts the
    script is in between, say.
    """
    found, workers = [], set()
    for entry in filter(str.isdigit, os.listdir('/proc')):
        role = _role_in_job(int(entry), scheduler)
        if role in roles:
            found.append(int(entry))
            if role == 'worker':
                workers.add(int(entry))
    # Before any of them ends: what it has started would have another parent then.
    doomed = [pid for pid in found if pid != os.getpid() and workers.isdisjoint(_ancestors(pid))]
    for pid in doomed:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGTERM)


def is_started_by_worker(scheduler: Tuple[str, int]) -> bool:
    """Whether a worker of the ``launch.py`` job with this `scheduler` has started this process."""
    return any(_role_in_job(pid, scheduler) == 'worker' for pid in _ancestors(os.getpid()))


def _role_in_job(pid: int, scheduler: Tuple[str, int]) -> str:
    """``DMLC_ROLE`` of a process of a ``launch.py`` job, for the same user and by the same interpreter; else empty."""
    try:
        if (os.stat('/proc/%d' % pid).st_uid != os.getuid()
                or os.readlink('/proc/%d/exe' % pid) != os.readlink('/proc/self/exe')):
            return ''
        with open('/proc/%d/environ' % pid, 'rb') as handle:
            variables = set(handle.read().split(b'\0'))
    except OSError:
        return ''
    if not {b'DMLC_PS_ROOT_URI=' + scheduler[0].encode(), b'DMLC_PS_ROOT_PORT=%d' % scheduler[1]} <= variables:
        return ''
    return next((role for role in ('scheduler', 'server', 'worker') if ('DMLC_ROLE=' + role).encode() in variables), '')


def _ancestors(pid: int) -> Iterator[int]:
    """Processes that started a process, the nearest first."""
    while pid > 1:
        try:
            with open('/proc/%d/stat' % pid) as file:
                pid = int(file.read().rpartition(')')[2].split()[1])
        except (OSError, IndexError):
            return
        yield pid
