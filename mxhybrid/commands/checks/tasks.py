"""Check that the tasks of a launcher are the workers of one job."""
from typing import List, Optional

from ...base import launcher
from ...base.launcher import Launch
from ...job.lone_task import describe_lone_task, describe_task_hint, lone_task_remedy, task_hint_remedy
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
    if launch.launcher != 'none' and launch.workers != 1:
        if horovod_has_mpi is not False or not tasks.certain:
            return []  # joining the job will show it
        return [Finding(GROUP, 'launcher', FAILED, describe_lone_task(tasks) + ', since Horovod was built without MPI',
                        lone_task_remedy(tasks), data)]
    if tasks.certain:
        return [Finding(GROUP, 'launcher', FAILED, describe_lone_task(tasks), lone_task_remedy(tasks), data)]
    return [Finding(GROUP, 'launcher', ADVICE, describe_task_hint(tasks), task_hint_remedy(tasks), data)]
