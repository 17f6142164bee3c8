"""Joining without other processes, an engine that cannot work, and the choice of transports."""
import os
import types

import pytest

from mxhybrid.base import launcher
from mxhybrid.base.errors import SettingError
from mxhybrid.base.settings import Settings
from mxhybrid.job import horovodrun, join
from mxhybrid.job.guard import Guard
from mxhybrid.job.horovodrun import check_reach
from mxhybrid.job.transport_choice import is_served
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


# ------------------------------------------------------------------------------------------ transports

ASKED = Settings(row_transport='lane')


def test_every_worker_needs_a_server_beside_it():
    assert is_served(ASKED, 0, ['boot/1/7', 'boot/1/7', 'other/1/7'], ['boot/1/7', 'other/1/7'])
    assert not is_served(Settings(), 1, ['boot/1/7', 'boot/1/8'], ['boot/1/7'])
    with pytest.raises(SettingError, match="^MXHYBRID_ROW_TRANSPORT='lane', but worker 1 runs as user 8, and a server "
                                           'of its host as user 7, and only processes of one user share memory'):
        is_served(ASKED, 1, ['boot/1/7', 'boot/1/8'], ['boot/1/7'])
    for lonely in ('boot/2/7', 'other/1/7', 'other/1/8'):  # another network, kernel or both
        with pytest.raises(SettingError, match='a host has workers, but no server that they share memory with'):
            is_served(ASKED, 0, ['boot/1/7', lonely], ['boot/1/7'])


def test_int8_needs_the_lane():
    settings = Settings(wire_dtype=(('embed*', 'int8'), ('*', 'float16')))
    with pytest.raises(SettingError, match=r"^MXHYBRID_WIRE_DTYPE='embed\*=int8,\*=float16' needs the lane, but a host "
                                           'has workers, but no server .* use float16 in place of int8$'):
        is_served(settings, 1, ['boot/1/7', 'other/1/7'], ['boot/1/7'])
    assert not is_served(Settings(wire_dtype=(('*', 'float16'),)), 1, ['boot/1/7', 'other/1/7'], ['boot/1/7'])


def test_unix_sockets_for_ps_lite_are_refused_between_hosts():
    check_reach(['a', 'a'], [True, True])
    check_reach(['a', 'b'], [False, False])
    with pytest.raises(SettingError, match='DMLC_LOCAL=1 on worker 1: .* the job has the hosts a, b: unset DMLC_LOCAL'):
        check_reach(['a', 'b', 'a'], [False, True, True])
