"""MXNet's own launch.py, wherever it can run at all: on CPython 3.8 (later ones lack ``Thread.isAlive``)."""
import pytest
from lab.jobs import run_job, start_job

from ...helpers import comparing
from ...helpers.tracker_ports import tracker_ports
from ..faults import BODIES as FAULT_BODIES
from ..training import BODIES as TRAINING_BODIES

pytestmark = pytest.mark.both_pythons

FAULTS, TRAIN = FAULT_BODIES / 'faults.py', TRAINING_BODIES / 'train.py'


@pytest.fixture(autouse=True)
def ports():
    """Keep other tests from the port that the launcher has chosen."""
    with tracker_ports():
        yield


def test_equals_one_process():
    cases = ['--cases', 'dense,widths,weight-adam,weight-nag,gradient-adagrad,trainers']
    expected = comparing.reference(TRAIN, *cases)
    result = run_job(TRAIN, 'stock-launch.py', workers=2, servers=2, args=cases, timeout=120).ok()
    comparing.assert_cases(expected, result, 2)


@pytest.mark.parametrize('what', ['raise', 'early', 'leave'])
def test_failing_worker_ends_the_job(what):
    """The stock launcher ends with 0 whatever happens; that nothing is left running is checked by `run_job`."""
    result = run_job(FAULTS, 'stock-launch.py', workers=2, servers=2, args=[1, what, 4], timeout=45)
    assert 'step 599' not in result.output


@pytest.mark.parametrize('role', ['worker', 'server', 'scheduler'])
def test_killed_process_ends_the_job(role):
    with start_job(FAULTS, 'stock-launch.py', workers=2, servers=2, args=[0, 'nothing', 0]) as job:
        job.wait_for_output('step 3', timeout=60)
        job.kill(job.processes(role)[-1].pid)
        result = job.wait(timeout=30)
    assert 'ends, because' in result.output and role in result.output.partition('ends, because')[2]
