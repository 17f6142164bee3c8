"""Finds and ends the processes of a ``launch.py`` job on this host, which MXNet's own launcher leaves behind."""
import contextlib
import os
import signal
from typing import Tuple

from ..base import proc


def end_processes_of_job(scheduler: Tuple[str, int], roles: Tuple[str, ...]) -> None:
    """End the other processes on this host of the ``launch.py`` job with this `scheduler`, host and port.

    Under MXNet's own launcher nobody else would: its scheduler and servers wait for a dead worker for ever.
    A process belongs to the job when its environment names that scheduler, it runs as one of `roles`
    (``DMLC_ROLE``), for the same user and by the same interpreter.  What a worker has started has the same
    environment, but is its own business; what scheduler and servers have is the job's: a program that starts the
    script is in between, say.
    """
    roles_found = {pid: _role_in_job(pid, scheduler) for pid in proc.pids()}
    workers = {pid for pid, role in roles_found.items() if role == 'worker' and role in roles}
    # Before any of them ends: what it has started would have another parent then.
    doomed = [pid for pid, role in roles_found.items()
              if role in roles and pid != os.getpid() and workers.isdisjoint(proc.ancestors(pid))]
    for pid in doomed:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGTERM)


def is_started_by_worker(scheduler: Tuple[str, int]) -> bool:
    """Whether a worker of the ``launch.py`` job with this `scheduler` has started this process."""
    return any(_role_in_job(pid, scheduler) == 'worker' for pid in proc.ancestors(os.getpid()))


def _role_in_job(pid: int, scheduler: Tuple[str, int]) -> str:
    """``DMLC_ROLE`` of a process of a ``launch.py`` job, for the same user and by the same interpreter; else empty."""
    if not proc.is_own(pid) or proc.read_executable(pid) != proc.read_executable(os.getpid()):
        return ''
    environ = proc.read_environ(pid)
    if (environ.get('DMLC_PS_ROOT_URI'), environ.get('DMLC_PS_ROOT_PORT')) != (scheduler[0], str(scheduler[1])):
        return ''
    role = environ.get('DMLC_ROLE', '')
    return role if role in ('scheduler', 'server', 'worker') else ''
