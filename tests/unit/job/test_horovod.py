"""The variables that Horovod gets before it starts."""
import collections
import os

import pytest
from hypothesis import given, strategies as st

from mxhybrid.base.settings import Limits
from mxhybrid.job import horovod
from mxhybrid.job.horovod import prepare_horovod

pytestmark = pytest.mark.both_pythons

TIMEOUT, CYCLE = 'HOROVOD_GLOO_TIMEOUT_SECONDS', 'HOROVOD_CYCLE_TIME'


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in (TIMEOUT, CYCLE, 'HOROVOD_LOCAL_SIZE', 'HOROVOD_SIZE'):
        monkeypatch.setenv(name, '')  # so that it is put back
        monkeypatch.delenv(name)


@pytest.mark.parametrize('limits, least', [
    (Limits(120, 60, 600), 120), (Limits(10, 60, 0), 60), (Limits(600.5, 5, 0), 600)])
def test_horovod_waits_longer_than_mxhybrid_which_names_missing_workers(limits, least):
    prepare_horovod(limits, False)
    assert int(os.environ[TIMEOUT]) > least
    assert CYCLE not in os.environ


def test_horovod_without_gradients_looks_less_often():
    prepare_horovod(Limits(), True)
    assert os.environ[CYCLE] == '25'


@pytest.mark.parametrize('workers, processors, cycle', [
    ('2', 2, '25'), ('3', 2, '50'), ('7', 2, '100'), ('48', 2, '100'), ('4', 64, '25'), ('', 2, '25'), ('0', 2, '25')])
def test_horovod_looks_less_often_where_workers_share_processors(monkeypatch, workers, processors, cycle):
    monkeypatch.setenv('HOROVOD_LOCAL_SIZE', workers)
    monkeypatch.setattr(os, 'sched_getaffinity', lambda _: set(range(processors)))
    prepare_horovod(Limits(), True)
    assert os.environ[CYCLE] == cycle


@pytest.mark.parametrize('workers, cycle', [
    ('2', '25'), ('3', '50'), ('4', '50'), ('8', '100'), ('64', '100'), ('', '25'), ('0', '25')])
def test_horovod_looks_less_often_in_jobs_of_many_workers(monkeypatch, workers, cycle):
    monkeypatch.setenv('HOROVOD_LOCAL_SIZE', '1')
    monkeypatch.setenv('HOROVOD_SIZE', workers)
    prepare_horovod(Limits(), True)
    assert os.environ[CYCLE] == cycle


def test_a_value_of_the_user_counts(monkeypatch):
    monkeypatch.setenv(TIMEOUT, '7')
    monkeypatch.setenv(CYCLE, '2')
    prepare_horovod(Limits(), True)
    assert os.environ[TIMEOUT] == '7' and os.environ[CYCLE] == '2'


FIELDS = ('hostname', 'rank', 'local_rank', 'cross_rank', 'size', 'local_size', 'cross_size')


def described(slots):
    """Horovod's slot objects as comparable tuples."""
    return [tuple(getattr(slot, field) for field in FIELDS) for slot in slots]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_slots_of_grouped_hosts_are_those_that_horovodrun_assigns(counts):
    horovod_hosts = pytest.importorskip('horovod.runner.common.util.hosts')
    hosts = ['host%d' % number for number, count in enumerate(counts) for _ in range(count)]
    infos = [horovod_hosts.HostInfo('host%d' % number, count) for number, count in enumerate(counts)]
    assert described(horovod.slots_of(hosts)) == described(horovod_hosts.get_host_assignments(infos, len(hosts)))


@given(st.lists(st.sampled_from('abcd'), min_size=1, max_size=12))
def test_slots_of_hosts_in_any_order_are_consistent(hosts):
    pytest.importorskip('horovod')
    slots = horovod.slots_of(hosts)
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
