"""Check that the tasks of a launcher are the workers of one job."""
from typing import List, Optional

from ...base import launcher
from ...base.launcher import Launch
from ...job.lone_task import describe_tasks
from .findings import ADVICE, FAILED, Finding
from .settings import GROUP


def check(launch: Launch, horovod_has_mpi: Optional[bool]) -> List[Finding]:
    """Look for tasks that each train alone: those of launchers that mxhybrid does not know, and those of MPI if Horovod
    was built without it; `horovod_has_mpi` is None if that is not known.
    """
    tasks = launcher.several_tasks()
    if tasks is None or launch.launcher == 'launch.py' or launch.rendezvous is not None and launch.workers != 1:
        return []
    data = {'launcher': tasks.launcher, 'tasks': tasks.count, 'variables': dict(tasks.variables)}
    text, remedy = describe_tasks(tasks)
    if launch.launcher != 'none' and launch.workers != 1:
        if horovod_has_mpi is not False or not tasks.certain:
            return []  # joining the job will show it
        text += ', since Horovod was built without MPI'
    return [Finding(GROUP, 'launcher', FAILED if tasks.certain else ADVICE, text, remedy, data)]
