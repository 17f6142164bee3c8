"""Joining without other processes: a job of one, and an engine that cannot work."""
import os
import types

import pytest

from mxhybrid.base import launcher
from mxhybrid.base.errors import SettingError
from mxhybrid.base.settings import Settings
from mxhybrid.job import horovodrun, join
from mxhybrid.job.guard import Guard
from mxhybrid.telemetry.session import Session

pytestmark = pytest.mark.both_pythons


def test_one_process_joins_without_servers_or_others(monkeypatch):
    for name in os.environ:
        if name.startswith(launcher.OF_HOROVODRUN + launcher.OF_LAUNCH_PY):
            monkeypatch.delenv(name)
    alone = join.enter(Settings())
    assert (alone.rank, alone.num_workers, alone.num_servers, len(alone.topology.hosts)) == (0, 1, 0, 1)
    assert not alone.distributed and alone.guard.lifeline is None and alone.collective is None
    join.agree_on_store(alone, Settings(), None)  # with no other worker
    with pytest.raises(SettingError, match='a problem'):
        join.agree_on_store(alone, Settings(), SettingError('a problem'))


def test_the_naive_engine_is_refused_with_the_way_out(monkeypatch):
    monkeypatch.setenv('MXNET_ENGINE_TYPE', 'NaiveEngine')
    with pytest.raises(SettingError, match="MXNET_ENGINE_TYPE='NaiveEngine' deadlocks.*unset it"):
        join.check_engine()
    monkeypatch.setenv('MXNET_ENGINE_TYPE', 'ThreadedEnginePerDevice')
    join.check_engine()


class NameAskedError(Exception):
    """The name of this host was looked up."""


@pytest.mark.parametrize('environ, asks', [
    ({'OMPI_COMM_WORLD_RANK': '0', 'OMPI_COMM_WORLD_SIZE': '2', 'OMPI_COMM_WORLD_LOCAL_SIZE': '1'}, False),
    ({'HOROVOD_RANK': '0', 'HOROVOD_SIZE': '2', 'HOROVOD_LOCAL_SIZE': '1', 'HOROVOD_GLOO_RENDEZVOUS_ADDR': '10.0.0.1',
      'HOROVOD_GLOO_RENDEZVOUS_PORT': '7'}, True)], ids=['MPI', 'Gloo'])
def test_the_name_of_a_host_matters_to_gloo_only(monkeypatch, environ, asks):
    def asked(several_hosts):
        assert several_hosts
        raise NameAskedError

    hvd = types.SimpleNamespace(init=lambda: None, is_initialized=lambda: True, rank=lambda: 0, size=lambda: 1)
    monkeypatch.setattr(horovodrun, 'load_horovod', lambda: hvd)
    monkeypatch.setattr(horovodrun, 'check_host_name', asked)
    settings, telemetry = Settings(), Session()
    launch = launcher.read(environ)
    assert launch.launcher == 'horovodrun' and launch.several_hosts
    guard = Guard(settings, telemetry, launch.scheduler)
    if asks:
        with pytest.raises(NameAskedError):
            horovodrun.join(settings, launch, telemetry, guard)
    else:
        assert horovodrun.join(settings, launch, telemetry, guard) is None
