"""Compare the tasks that a launcher has started with the workers that Horovod has connected.

mpirun, srun and torchrun start tasks that a Horovod without MPI does not connect: each task would train its own model.
"""
from ..base import launcher, log
from ..base.errors import SettingError
from ..base.launcher import Launch, StartedTasks

logger = log.get_logger(__name__)

_REMEDY = ("Start the job with 'horovodrun -np %d python SCRIPT' or with 'python scripts/launch.py -n %d -s 1 "
             "--launcher local python SCRIPT', see docs/launching.md")


def describe_lone_task(tasks: StartedTasks) -> str:
    """Return a sentence about the tasks that the launcher has started, and the consequence."""
    return ('%s has started this process as one of %d tasks (%s), but mxhybrid finds 1 worker: each task would train a '
            'model of its own as worker 0 of 1' % (tasks.launcher, tasks.count, tasks.said))


def lone_task_remedy(tasks: StartedTasks) -> str:
    """Return instructions to make the tasks one job, or to keep them apart."""
    return (_REMEDY + '. If each task is to train a model of its own, unset %s') % (tasks.count, tasks.count,
                                                                                     tasks.names)


def describe_task_hint(tasks: StartedTasks) -> str:
    """Return a sentence about variables that hint at several tasks."""
    return '%s says that there are several tasks, but this process trains alone, as worker 0 of 1' % tasks.said


def task_hint_remedy(tasks: StartedTasks) -> str:
    """Return instructions for variables that hint at several tasks."""
    return (_REMEDY + ', if it is to be one of several workers; otherwise unset %s') % (tasks.count, tasks.count,
                                                                                    tasks.names)


def refuse_lone_task() -> None:
    """Refuse to train alone if a launcher has started several tasks; warn if variables only hint at that."""
    tasks = launcher.several_tasks()
    if tasks is not None and tasks.certain:
        raise SettingError('%s. %s' % (describe_lone_task(tasks), lone_task_remedy(tasks)))
    if tasks is not None:
        logger.warning('%s. %s', describe_task_hint(tasks), task_hint_remedy(tasks))


def compare_sizes(launch: Launch, workers: int) -> None:
    """Refuse a job in which Horovod has not connected all workers that the launcher has started."""
    if launch.workers is not None and launch.workers != workers:
        raise SettingError('the launcher has started %d workers, but Horovod has connected %d: start the job with '
                           'horovodrun or launch.py, and unset HOROVOD_* variables of another job'
                           % (launch.workers, workers))
