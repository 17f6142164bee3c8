"""What launchers say: every launcher, MPI and PMI, and processes that only inherit a member's variables."""
import os

import pytest

from mxhybrid.base import launcher
from mxhybrid.base.launcher import Launch


@pytest.mark.parametrize('environ, name', [
    ({}, 'none'),
    ({'HOROVOD_RANK': '0'}, 'horovodrun'),
    ({'OMPI_COMM_WORLD_SIZE': '2'}, 'horovodrun'), ({'PMI_SIZE': '2'}, 'horovodrun'),
    ({'PMIX_RANK': '0'}, 'horovodrun'),
    ({'DMLC_ROLE': 'worker', 'DMLC_PS_ROOT_URI': '10.0.0.1'}, 'launch.py'),
    ({'DMLC_ROLE': 'worker', 'DMLC_PS_ROOT_URI': '10.0.0.1', 'PMI_SIZE': '2'}, 'launch.py'),
    ({'DMLC_ROLE': 'worker'}, 'none'),
])
def test_the_launcher_shows_in_the_environment(environ, name):
    assert launcher.read(environ).launcher == name


BY_LAUNCH_PY = {'DMLC_ROLE': 'worker', 'DMLC_PS_ROOT_URI': '10.0.0.1', 'DMLC_PS_ROOT_PORT': '9091'}
BY_HOROVODRUN = {'HOROVOD_GLOO_RENDEZVOUS_ADDR': '10.0.0.1', 'HOROVOD_GLOO_RENDEZVOUS_PORT': '7', 'HOROVOD_RANK': '0'}


@pytest.mark.parametrize('member, started, name', [
    (BY_LAUNCH_PY, {}, 'none'), (BY_HOROVODRUN, {}, 'none'),
    (BY_LAUNCH_PY, BY_HOROVODRUN, 'horovodrun'), (BY_HOROVODRUN, BY_LAUNCH_PY, 'launch.py'),
    (BY_LAUNCH_PY, {'DMLC_PS_ROOT_PORT': '9092'}, 'launch.py'),
    (BY_HOROVODRUN, {'HOROVOD_GLOO_RENDEZVOUS_PORT': '8'}, 'horovodrun')])
def test_of_a_member_s_variables_only_those_count_that_a_launcher_has_changed(monkeypatch, member, started, name):
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
    ({}, Launch()),
    ({'HOROVOD_RANK': '3', 'HOROVOD_SIZE': '4', 'HOROVOD_LOCAL_SIZE': '2', 'HOROVOD_GLOO_RENDEZVOUS_ADDR': 'a',
      'HOROVOD_GLOO_RENDEZVOUS_PORT': '77', 'HOROVOD_LOCAL_RANK': '1', 'HOROVOD_GLOO_IFACE': 'e0'},
     Launch('horovodrun', 3, 4, 2, None, 1, ('a', 77), None, 'e0')),
    ({'OMPI_COMM_WORLD_RANK': '1', 'OMPI_COMM_WORLD_SIZE': '2', 'OMPI_COMM_WORLD_LOCAL_SIZE': '1'},
     Launch('horovodrun', 1, 2, 1, None)),
    ({'PMI_RANK': '1', 'PMI_SIZE': '2'}, Launch('horovodrun', 1, 2, None, None)),
    ({'PMIX_RANK': '1'}, Launch('horovodrun', 1, None, None, None)),
    ({'PMIX_RANK': '1', 'SLURM_STEP_NUM_TASKS': '2'}, Launch('horovodrun', 1, 2, None, None)),
    ({'SLURM_STEP_NUM_TASKS': '2'}, Launch()),
    ({'DMLC_ROLE': 'worker', 'DMLC_PS_ROOT_URI': 'a', 'DMLC_PS_ROOT_PORT': '9', 'DMLC_NUM_WORKER': '3',
      'DMLC_NUM_SERVER': '2', 'DMLC_TASK_ID': '2', 'DMLC_JOB_CLUSTER': 'local'},
     Launch('launch.py', 2, 3, 3, 2, 2, scheduler=('a', 9))),
    ({'DMLC_ROLE': 'worker', 'DMLC_PS_ROOT_URI': 'a', 'DMLC_PS_ROOT_PORT': '9', 'DMLC_NUM_WORKER': '3',
      'DMLC_NUM_SERVER': '2'},
     Launch('launch.py', -1, 3, None, 2, 0, scheduler=('a', 9)))])
def test_what_launchers_say(environ, launch):
    assert launcher.read(environ) == launch


@pytest.mark.parametrize('launch, several', [
    (Launch(), False), (Launch(workers=4, local_workers=4), False), (Launch(workers=4, local_workers=2), True),
    (Launch(workers=4, local_workers=None), None), (Launch(workers=None, local_workers=2), None)])
def test_whether_there_are_several_hosts(launch, several):
    assert launch.several_hosts is several
