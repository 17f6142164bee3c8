"""Tasks that mpirun, srun or torchrun started, and workers that are bound to cores of their own."""
import os

import numpy as np
import pytest
from lab.jobs import run_job

from ...helpers.turns import by_turns, slow
from . import BODIES

BODY = BODIES / 'lone_task.py'
WAYS_OUT = ['horovodrun -np 2 python SCRIPT', 'scripts/launch.py -n 2 -s 1', 'is to train a model of its own, unset']


@pytest.mark.parametrize('rank', [0, slow(1)])
@pytest.mark.parametrize('prefix, size, name', [
    ('OMPI_COMM_WORLD_', 'SIZE', 'RANK'), slow('MV2_COMM_WORLD_', 'SIZE', 'RANK'), slow('PMI_', 'SIZE', 'RANK'),
    ('SLURM_', 'STEP_NUM_TASKS', 'PROCID'), slow('', 'WORLD_SIZE', 'RANK')])
def test_a_task_of_several_does_not_train_alone(prefix, size, name, rank):
    env = {prefix + size: '2', prefix + name: str(rank)}
    result = run_job(BODY, 'none', env=env, timeout=60).failed(
        'one of 2 tasks (%s=2, %s=%d), but mxhybrid finds 1 worker' % (prefix + size, prefix + name, rank), *WAYS_OUT)
    assert 'trained' not in result.output


def test_a_script_that_has_initialised_horovod_by_itself():
    run_job(BODY, 'none', args=['init'], env={'WORLD_SIZE': '2', 'RANK': '0'}, timeout=60).failed(
        'torchrun has started this process as one of 2 tasks', *WAYS_OUT)


@pytest.mark.parametrize('env, words', [
    ({'WORLD_SIZE': '2'}, 'WORLD_SIZE=2 says that there are several tasks'),
    ({'OMPI_COMM_WORLD_SIZE': '1', 'OMPI_COMM_WORLD_RANK': '0', 'SLURM_NTASKS': '4', 'SLURM_PROCID': '0'}, None)])
def test_one_task_trains_alone(env, words):
    result = run_job(BODY, 'none', env=env, timeout=60).ok()
    assert 'rank 0 of 1 trained' in result.output
    assert ('several tasks' in result.output) == (words is not None) and (words or '') in result.output


def test_horovodrun_in_a_step_of_slurm():
    env = {'SLURM_STEP_NUM_TASKS': '4', 'SLURM_PROCID': '0', 'WORLD_SIZE': '4', 'RANK': '0'}
    assert not env.keys() & os.environ.keys()
    result = run_job(BODY, 'horovodrun', workers=2, env=env, timeout=60).ok()
    assert 'rank 1 of 2 trained' in result.output and 'tasks' not in result.output


BOUND_BODY = BODIES / 'bound.py'


def switched(value):
    return {'MXHYBRID_BIND_TO_CORES': value}


@pytest.fixture
def allowed():
    """Two cores of this machine, which jobs are limited to."""
    available = os.sched_getaffinity(0)
    cores = sorted(available)[:2]
    os.sched_setaffinity(0, cores)
    yield cores
    os.sched_setaffinity(0, available)


@pytest.mark.parametrize('launcher, env, binds', by_turns(
    ['horovodrun', 'launch.py'], [({}, True), (switched('0'), False),
                                  (dict(switched('1'), OMP_NUM_THREADS='2'), True)]))
def test_workers_have_cores_of_their_own(launcher, env, binds, allowed):
    result = run_job(BOUND_BODY, launcher, workers=2, env=dict({'OMP_NUM_THREADS': '1'}, **env), timeout=90).ok()
    cores_by_rank = [result.results[rank]['threads'][0] for rank in range(2)]
    for rank, values in result.results.items():
        np.testing.assert_array_equal(values['value'], np.full((3, 2), 3.0))
        assert values['threads'] == [cores_by_rank[rank]] * len(values['threads'])
        assert values['child'] == values['allowed'] == allowed
    assert sorted(result.results) == [0, 1]
    assert cores_by_rank == ([[core] for core in allowed] if binds else [allowed] * 2)


def test_cores_that_workers_cannot_share_equally(allowed):
    result = run_job(BOUND_BODY, workers=3, env=switched('1'), timeout=90)
    result.failed('MXHYBRID_BIND_TO_CORES=1: host ', ' has 2 cores for 3 workers', 'start 2 or 4 workers on it')
    assert result.output.count('has 2 cores for 3 workers') >= 3  # on every worker
