"""The process to which scripts/launch.py attributes the end of a job."""
import queue
import runpy
import signal
import types
from pathlib import Path

import pytest

pytestmark = pytest.mark.both_pythons

LAUNCH = runpy.run_path(str(Path(__file__).resolve().parents[3] / 'scripts' / 'launch.py'))


def task(status, over_ssh=False):
    return types.SimpleNamespace(status=status, over_ssh=over_ssh)


def cause(*tasks):
    """Return the number of that task, given tasks in the order of their ends."""
    job = LAUNCH['Job'].__new__(LAUNCH['Job'])
    job._ends = queue.Queue()
    for one in tasks[1:]:
        job._ends.put(one)
    return tasks.index(job._cause(tasks[0]))


@pytest.mark.parametrize('tasks, which', [
    ([task(1), task(2)], 0),
    ([task(-signal.SIGTERM), task(0), task(3)], 2),
    ([task(143, True), task(255, True), task(1, True)], 2),
    ([task(143), task(1)], 1),
    ([task(143)], 0),
    ([task(255), task(1)], 0),
    ([task(255, True)], 0)],
    ids=['itself', 'an echo', 'echoes over ssh', 'told to end', 'told to end, alone', 'a status of 255', 'ssh alone'])
def test_a_process_ended_by_another_is_no_cause(tasks, which):
    assert cause(*tasks) == which
