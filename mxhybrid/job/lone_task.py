"""Compares the tasks that a launcher has started with the workers that Horovod has found.

mpirun, srun and torchrun start tasks that a Horovod without MPI does not connect: each would train a model of its own.
"""
from ..base import launcher, log
from ..base.errors import SettingError
from ..base.launcher import Launch, StartedTasks

logger = log.get_logger(__name__)

_WAYS_OUT = ("Start the job with 'horovodrun -np %d python SCRIPT' or with 'python scripts/launch.py -n %d -s 1 "
             "--launcher local python SCRIPT', see docs/launching.md")


def describe_lone_task(tasks: StartedTasks) -> str:
    """Say what the launcher has started and what comes of it."""
    return ('%s has started this process as one of %d tasks (%s), but mxhybrid finds 1 worker: each task would train a '
            'model of its own as worker 0 of 1' % (tasks.launcher, tasks.count, tasks.said))


def lone_task_remedy(tasks: StartedTasks) -> str:
    """Say how the tasks become a job, or how they stay alone."""
    return (_WAYS_OUT + '. If each task is to train a model of its own, unset %s') % (tasks.count, tasks.count,
                                                                                     tasks.names)


def describe_task_hint(tasks: StartedTasks) -> str:
    """Say which variables hint at several tasks."""
    return '%s says that there are several tasks, but this process trains alone, as worker 0 of 1' % tasks.said


def task_hint_remedy(tasks: StartedTasks) -> str:
    """Say what to do about such variables."""
    return (_WAYS_OUT + ', if it is to be one of several workers; else unset %s') % (tasks.count, tasks.count,
                                                                                    tasks.names)


def refuse_lone_task() -> None:
    """Refuse to train alone where a launcher has started several tasks; where that is a guess, warn."""
    tasks = launcher.several_tasks()
    if tasks is not None and tasks.certain:
        raise SettingError('%s. %s' % (describe_lone_task(tasks), lone_task_remedy(tasks)))
    if tasks is not None:
        logger.warning('%s. %s', describe_task_hint(tasks), task_hint_remedy(tasks))


def compare_sizes(launch: Launch, workers: int) -> None:
    """Refuse a job in which Horovod has connected another number of workers than the launcher has started."""
    if launch.workers is not None and launch.workers != workers:
        raise SettingError('the launcher has started %d workers, but Horovod has connected %d: start the job with '
                           'horovodrun or launch.py, and unset HOROVOD_* variables of another job'
                           % (launch.workers, workers))
