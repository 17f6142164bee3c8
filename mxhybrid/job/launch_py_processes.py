"""Find and end the processes of a ``launch.py`` job on this host, which MXNet's own launcher leaves behind."""
import contextlib
import os
import signal
from typing import Tuple

from ..base import proc


def end_processes_of_job(scheduler: Tuple[str, int], roles: Tuple[str, ...]) -> None:
    """End the other processes, on this host, of the ``launch.py`` job with this `scheduler`, host and port.

    MXNet's own launcher does not end them: its scheduler and servers wait for a dead worker for ever.  A process
    belongs to the job if its environment names that scheduler and one of the `roles` (``DMLC_ROLE``), and it runs for
    the same user and with the same interpreter.  Processes that a worker has started have the same environment, but
    are spared.  Processes that the scheduler or a server has started are ended: a wrapper may have started the script.
    """
    role_of = {pid: _role_in_job(pid, scheduler) for pid in proc.pids()}
    workers = {pid for pid, role in role_of.items() if role == 'worker' and role in roles}
    # Found before any of them ends: the children of a process that has ended have another parent.
    to_end = [pid for pid, role in role_of.items()
              if role in roles and pid != os.getpid() and workers.isdisjoint(proc.ancestors(pid))]
    for pid in to_end:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGTERM)


def is_started_by_worker(scheduler: Tuple[str, int]) -> bool:
    """Return whether a worker of the ``launch.py`` job with this `scheduler` has started this process."""
    return any(_role_in_job(pid, scheduler) == 'worker' for pid in proc.ancestors(os.getpid()))


def _role_in_job(pid: int, scheduler: Tuple[str, int]) -> str:
    """Return ``DMLC_ROLE`` of a process of the job of this user and interpreter; empty for other processes."""
    if not proc.is_own(pid) or proc.read_executable(pid) != proc.read_executable(os.getpid()):
        return ''
    environ = proc.read_environ(pid)
    if (environ.get('DMLC_PS_ROOT_URI'), environ.get('DMLC_PS_ROOT_PORT')) != (scheduler[0], str(scheduler[1])):
        return ''
    role = environ.get('DMLC_ROLE', '')
    return role if role in ('scheduler', 'server', 'worker') else ''
