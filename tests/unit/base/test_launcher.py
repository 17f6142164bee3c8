"""Variables of each launcher, of MPI and PMI, and processes that only inherit the variables of a member."""
import os

import pytest

from mxhybrid.base import launcher
from mxhybrid.base.launcher import Launch

pytestmark = pytest.mark.both_pythons

BY_LAUNCH_PY = {'DMLC_ROLE': 'worker', 'DMLC_PS_ROOT_URI': '10.0.0.1', 'DMLC_PS_ROOT_PORT': '9091'}
BY_HOROVODRUN = {'HOROVOD_GLOO_RENDEZVOUS_ADDR': '10.0.0.1', 'HOROVOD_GLOO_RENDEZVOUS_PORT': '7', 'HOROVOD_RANK': '0'}


@pytest.mark.parametrize('member, started, name', [
    (BY_LAUNCH_PY, {}, 'none'), (BY_HOROVODRUN, {}, 'none'),
    (BY_LAUNCH_PY, BY_HOROVODRUN, 'horovodrun'), (BY_HOROVODRUN, BY_LAUNCH_PY, 'launch.py'),
    (BY_LAUNCH_PY, {'DMLC_PS_ROOT_PORT': '9092'}, 'launch.py'),
    (BY_HOROVODRUN, {'HOROVOD_GLOO_RENDEZVOUS_PORT': '8'}, 'horovodrun')])
def test_unchanged_variables_of_a_member_do_not_count(monkeypatch, member, started, name):
    for variable in list(os.environ):
        if variable.startswith(launcher.OF_HOROVODRUN + launcher.OF_LAUNCH_PY):
            monkeypatch.delenv(variable)
    for variable, value in member.items():
        monkeypatch.setenv(variable, value)
    known = launcher.membership()
    assert launcher.read().launcher != 'none'
    assert launcher.read(dict(os.environ, MXHYBRID_MEMBER=known)) == launcher.read()  # the member itself
    monkeypatch.setenv('MXHYBRID_MEMBER', known.replace(str(os.getpid()), str(os.getppid()), 1))
    for variable, value in started.items():
        monkeypatch.setenv(variable, value)
    assert launcher.read().launcher == name
    assert launcher.read().inherited == (name == 'none')


@pytest.mark.parametrize('environ, launch', [
    ({}, Launch()), ({'DMLC_ROLE': 'worker'}, Launch()),
    ({'HOROVOD_RANK': '0'}, Launch('horovodrun', 0, None, None, None)),
    ({'MV2_COMM_WORLD_RANK': '0'}, Launch('horovodrun', 0, None, None, None)),
    ({'OMPI_COMM_WORLD_SIZE': '2'}, Launch('horovodrun', -1, 2, None, None)),
    ({'PMI_SIZE': '2'}, Launch('horovodrun', -1, 2, None, None)),
    ({'DMLC_ROLE': 'worker', 'DMLC_PS_ROOT_URI': 'a', 'PMI_SIZE': '2'},
     Launch('launch.py', -1, 1, None, None, scheduler=('a', 0))),
    ({'HOROVOD_RANK': '3', 'HOROVOD_SIZE': '4', 'HOROVOD_LOCAL_SIZE': '2', 'HOROVOD_GLOO_RENDEZVOUS_ADDR': 'a',
      'HOROVOD_GLOO_RENDEZVOUS_PORT': '77', 'HOROVOD_LOCAL_RANK': '1', 'HOROVOD_GLOO_IFACE': 'e0'},
     Launch('horovodrun', 3, 4, 2, None, 1, ('a', 77), None, 'e0')),
    ({'OMPI_COMM_WORLD_RANK': '1', 'OMPI_COMM_WORLD_SIZE': '2', 'OMPI_COMM_WORLD_LOCAL_SIZE': '1'},
     Launch('horovodrun', 1, 2, 1, None)),
    ({'PMI_RANK': '1', 'PMI_SIZE': '2'}, Launch('horovodrun', 1, 2, None, None)),
    ({'MV2_COMM_WORLD_RANK': '3', 'MV2_COMM_WORLD_SIZE': '4', 'MV2_COMM_WORLD_LOCAL_SIZE': '2',
      'MV2_COMM_WORLD_LOCAL_RANK': '1'}, Launch('horovodrun', 3, 4, 2, None, 1)),
    ({'PMIX_RANK': '1'}, Launch('horovodrun', 1, None, None, None)),
    ({'PMIX_RANK': '1', 'SLURM_STEP_NUM_TASKS': '2'}, Launch('horovodrun', 1, 2, None, None)),
    ({'SLURM_STEP_NUM_TASKS': '2'}, Launch()),
    ({'DMLC_ROLE': 'worker', 'DMLC_PS_ROOT_URI': 'a', 'DMLC_PS_ROOT_PORT': '9', 'DMLC_NUM_WORKER': '3',
      'DMLC_NUM_SERVER': '2', 'DMLC_TASK_ID': '2', 'DMLC_JOB_CLUSTER': 'local'},
     Launch('launch.py', 2, 3, 3, 2, 2, scheduler=('a', 9))),
    ({'DMLC_ROLE': 'worker', 'DMLC_PS_ROOT_URI': 'a', 'DMLC_PS_ROOT_PORT': '9', 'DMLC_NUM_WORKER': '3',
      'DMLC_NUM_SERVER': '2'},
     Launch('launch.py', -1, 3, None, 2, 0, scheduler=('a', 9)))])
def test_variables_of_launchers(environ, launch):
    assert launcher.read(environ) == launch


@pytest.mark.parametrize('launch, several', [
    (Launch(), False), (Launch(workers=4, local_workers=4), False), (Launch(workers=4, local_workers=2), True),
    (Launch(workers=4, local_workers=None), None), (Launch(workers=None, local_workers=2), None)])
def test_whether_there_are_several_hosts(launch, several):
    assert launch.several_hosts is several


def variables(prefix, size, rank):
    return {name: str(value) for name, value in ((prefix[0], size), (prefix[1], rank)) if value is not None}


HOROVOD, OPEN_MPI = ('HOROVOD_SIZE', 'HOROVOD_RANK'), ('OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_RANK')
MVAPICH, PMI = ('MV2_COMM_WORLD_SIZE', 'MV2_COMM_WORLD_RANK'), ('PMI_SIZE', 'PMI_RANK')
SLURM, TORCHRUN = ('SLURM_STEP_NUM_TASKS', 'SLURM_PROCID'), ('WORLD_SIZE', 'RANK')
#: Slurm sets these in a batch script, which is one process, whatever number of tasks the allocation is for.
BATCH_SCRIPT = {'SLURM_NTASKS': '4', 'SLURM_NPROCS': '4', 'SLURM_NTASKS_PER_NODE': '2', 'SLURM_PROCID': '0',
                'SLURM_LOCALID': '0', 'SLURM_NODEID': '0', 'SLURM_JOB_NUM_NODES': '2'}


@pytest.mark.parametrize('prefix, words', [
    (HOROVOD, 'horovodrun'), (OPEN_MPI, 'Open MPI'), (MVAPICH, 'MVAPICH'), (PMI, 'MPICH or Intel MPI'),
    (SLURM, 'srun'), (TORCHRUN, 'torchrun')])
def test_a_launcher_that_has_started_several_tasks_is_named(prefix, words):
    for rank in range(2):
        tasks = launcher.several_tasks(dict(BATCH_SCRIPT, **variables(prefix, 2, rank)))
        assert (tasks.count, tasks.rank, tasks.certain) == (2, rank, True) and words in tasks.launcher
        assert tasks.said == '%s=2, %s=%d' % (prefix + (rank,))
    assert launcher.several_tasks(variables(prefix, 1, 0)) is None


@pytest.mark.parametrize('environ, said', [
    (variables(TORCHRUN, 2, None), 'WORLD_SIZE=2'), (variables(SLURM, 4, None), 'SLURM_STEP_NUM_TASKS=4'),
    (variables(PMI, None, 1), 'PMI_RANK=1'), (variables(TORCHRUN, None, 3), 'RANK=3'),
    # One task of an MPI in a step of several: whether each task of the step has started an MPI is not known.
    (dict(variables(OPEN_MPI, 1, 0), **variables(SLURM, 4, 0)), 'SLURM_STEP_NUM_TASKS=4, SLURM_PROCID=0')])
def test_hints_at_several_tasks_are_not_certain(environ, said):
    tasks = launcher.several_tasks(environ)
    assert tasks.said == said and not tasks.certain


@pytest.mark.parametrize('environ', [
    {}, BATCH_SCRIPT, dict(BATCH_SCRIPT, **variables(OPEN_MPI, 1, 0)), dict(BATCH_SCRIPT, **variables(HOROVOD, 1, 0)),
    variables(TORCHRUN, None, 0), {'PMIX_RANK': '0'}, {'WORLD_SIZE': 'large'}])
def test_one_process_is_no_task_of_several(environ):
    assert launcher.several_tasks(environ) is None


def test_the_launcher_within_another_one_counts():
    within_slurm = dict(variables(OPEN_MPI, 6, 5), **variables(SLURM, 2, 1))
    assert launcher.several_tasks(within_slurm).count == 6
    assert launcher.several_tasks(dict(within_slurm, **variables(HOROVOD, 3, 0))).launcher == 'horovodrun'


def test_a_child_of_a_member_is_no_task(monkeypatch):
    for name, value in dict(BY_HOROVODRUN, **variables(SLURM, 2, 0)).items():
        monkeypatch.setenv(name, value)
    known = launcher.membership().replace(str(os.getpid()), str(os.getppid()), 1)
    assert launcher.several_tasks(dict(os.environ, MXHYBRID_MEMBER=known)) is None
