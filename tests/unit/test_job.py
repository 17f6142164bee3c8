"""What a job works out before and without other processes: launcher, ranks, shared settings."""
import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxhybrid import bootstrap, job
from mxhybrid.errors import SettingError
from mxhybrid.settings import Settings, resolve

FIELDS = ('hostname', 'rank', 'local_rank', 'cross_rank', 'size', 'local_size', 'cross_size')


def described(slots):
    """Horovod's slot objects as comparable tuples."""
    return [tuple(getattr(slot, field) for field in FIELDS) for slot in slots]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_slots_of_grouped_hosts_are_those_that_horovodrun_assigns(counts):
    horovod_hosts = pytest.importorskip('horovod.runner.common.util.hosts')
    hosts = ['host%d' % number for number, count in enumerate(counts) for _ in range(count)]
    infos = [horovod_hosts.HostInfo('host%d' % number, count) for number, count in enumerate(counts)]
    assert described(bootstrap.slots_of(hosts)) == described(horovod_hosts.get_host_assignments(infos, len(hosts)))


@given(st.lists(st.sampled_from('abcd'), min_size=1, max_size=12))
def test_slots_of_hosts_in_any_order_are_consistent(hosts):
    pytest.importorskip('horovod')
    slots = bootstrap.slots_of(hosts)
    assert [slot.rank for slot in slots] == list(range(len(hosts)))
    assert [slot.hostname for slot in slots] == hosts
    assert {slot.size for slot in slots} == {len(hosts)}
    for host in set(hosts):
        here = [slot for slot in slots if slot.hostname == host]
        assert [slot.local_rank for slot in here] == list(range(len(here)))
        assert {slot.local_size for slot in here} == {len(here)}
    by_local_rank = collections.defaultdict(list)
    for slot in slots:
        by_local_rank[slot.local_rank].append(slot)
    for peers in by_local_rank.values():
        assert sorted(slot.cross_rank for slot in peers) == list(range(len(peers)))
        assert {slot.cross_size for slot in peers} == {len(peers)}


LAUNCHER_VARIABLES = ('HOROVOD_RANK', 'DMLC_ROLE', 'DMLC_PS_ROOT_URI', 'OMPI_COMM_WORLD_SIZE', 'PMI_SIZE', 'PMIX_RANK')


@pytest.mark.parametrize('environ, name', [
    ({}, 'none'),
    ({'HOROVOD_RANK': '0'}, 'horovodrun'),
    ({'OMPI_COMM_WORLD_SIZE': '2'}, 'horovodrun'), ({'PMI_SIZE': '2'}, 'horovodrun'),
    ({'PMIX_RANK': '0'}, 'horovodrun'),
    ({'DMLC_ROLE': 'worker', 'DMLC_PS_ROOT_URI': '10.0.0.1'}, 'launch.py'),
    ({'DMLC_ROLE': 'worker', 'DMLC_PS_ROOT_URI': '10.0.0.1', 'PMI_SIZE': '2'}, 'launch.py'),
    ({'DMLC_ROLE': 'worker'}, 'none'),
])
def test_the_launcher_shows_in_the_environment(monkeypatch, environ, name):
    for variable in LAUNCHER_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    assert job.launcher() == name


def test_a_job_of_one_process_has_no_servers_and_needs_nobody(monkeypatch):
    for variable in LAUNCHER_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    alone = job.Job(Settings())
    assert (alone.rank, alone.num_workers, alone.num_servers, len(alone.hosts)) == (0, 1, 0, 1)
    assert not alone.distributed and alone.lifeline is None and alone.collective is None
    assert [alone.next_store_id() for _ in range(3)] == [0, 1, 2]


def test_the_naive_engine_is_refused_with_the_way_out(monkeypatch):
    monkeypatch.setenv('MXNET_ENGINE_TYPE', 'NaiveEngine')
    with pytest.raises(SettingError, match="MXNET_ENGINE_TYPE='NaiveEngine' deadlocks.*unset it"):
        job.Job._check_engine()
    monkeypatch.setenv('MXNET_ENGINE_TYPE', 'ThreadedEnginePerDevice')
    job.Job._check_engine()


def test_settings_that_differ_between_workers_are_named_with_rank_and_values():
    alone = job.Job.__new__(job.Job)
    same, other = (job._shared(resolve({'partitions': value}, {})) for value in ('embed*=8', 'embed*=4'))
    alone._agree_on_settings([same, same, same])
    with pytest.raises(SettingError) as caught:
        alone._agree_on_settings([same, same, other])
    text = str(caught.value)
    assert text.startswith('MXHYBRID_PARTITIONS is') and '8' in text and '4' in text and 'worker 2' in text


def test_timeouts_and_log_levels_may_differ_between_workers():
    assert job._shared(resolve({'timeout': 3, 'log_level': 'debug'}, {})) == job._shared(Settings())
