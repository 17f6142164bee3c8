"""Compare the tasks that a launcher has started with the workers that Horovod has connected.

mpirun, srun and torchrun start tasks that a Horovod without MPI does not connect: each task would train its own model.
"""
from typing import Tuple

from ..base import launcher, log
from ..base.errors import SettingError
from ..base.launcher import Launch, StartedTasks

logger = log.get_logger(__name__)


def describe_tasks(tasks: StartedTasks) -> Tuple[str, str]:
    """Return a sentence about tasks that each train alone, or about variables that hint at such tasks, and a remedy."""
    start = ("Start the job with 'horovodrun -np %d python SCRIPT' or with 'python scripts/launch.py -n %d -s 1 "
             "--launcher local python SCRIPT', see docs/launching.md" % (tasks.count, tasks.count))
    if tasks.certain:
        return ('%s has started this process as one of %d tasks (%s), but mxhybrid finds 1 worker: each task would '
                'train a model of its own as worker 0 of 1' % (tasks.launcher, tasks.count, tasks.said),
                '%s. If each task is to train a model of its own, unset %s' % (start, tasks.names))
    return ('%s says that there are several tasks, but this process trains alone, as worker 0 of 1' % tasks.said,
            '%s, if it is to be one of several workers; otherwise unset %s' % (start, tasks.names))


def refuse_lone_task() -> None:
    """Refuse to train alone if a launcher has started several tasks; warn if variables only hint at that."""
    tasks = launcher.several_tasks()
    if tasks is not None:
        text = '%s. %s' % describe_tasks(tasks)
        if tasks.certain:
            raise SettingError(text)
        logger.warning('%s', text)


def compare_sizes(launch: Launch, workers: int) -> None:
    """Refuse a job in which Horovod has not connected all workers that the launcher has started."""
    if launch.workers is not None and launch.workers != workers:
        raise SettingError('the launcher has started %d workers, but Horovod has connected %d: start the job with '
                           'horovodrun or launch.py, and unset HOROVOD_* variables of another job'
                           % (launch.workers, workers))
