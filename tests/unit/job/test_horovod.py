"""The variables that Horovod gets before it starts."""
import collections
import os
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from mxhybrid.base.settings import Limits
from mxhybrid.job.horovod import configure_horovod, prepare_horovod

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


@pytest.mark.parametrize('local_workers, workers, processors, cycle', [
    (None, None, 2, '25'), ('2', None, 2, '25'), ('3', None, 2, '50'), ('7', None, 2, '100'), ('48', None, 2, '100'),
    ('4', None, 64, '25'), ('', None, 2, '25'), ('0', None, 2, '25'), ('1', '2', 2, '25'), ('1', '3', 2, '50'),
    ('1', '4', 2, '50'), ('1', '8', 2, '100'), ('1', '64', 2, '100'), ('1', '', 2, '25'), ('1', '0', 2, '25')])
def test_horovod_without_gradients_looks_less_often(monkeypatch, local_workers, workers, processors, cycle):
    """The less, the more workers share processors or belong to the job."""
    for name, value in (('HOROVOD_LOCAL_SIZE', local_workers), ('HOROVOD_SIZE', workers)):
        if value is not None:
            monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, 'sched_getaffinity', lambda _: set(range(processors)))
    prepare_horovod(Limits(), True)
    assert os.environ[CYCLE] == cycle


def test_a_value_of_the_user_counts(monkeypatch):
    monkeypatch.setenv(TIMEOUT, '7')
    monkeypatch.setenv(CYCLE, '2')
    prepare_horovod(Limits(), True)
    assert os.environ[TIMEOUT] == '7' and os.environ[CYCLE] == '2'


FIELDS = ('hostname', 'rank', 'size', 'local_rank', 'local_size', 'cross_rank', 'cross_size')


def places_of(hosts):
    """Return the variables of every rank, as tuples in the order of `FIELDS`."""
    places = []
    for rank in range(len(hosts)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, 'environ', {})
            configure_horovod(hosts, rank, '10.0.0.1', 7, None)
            places.append([os.environ['HOROVOD_' + field.upper()] for field in FIELDS])
    return [(host, *map(int, numbers)) for host, *numbers in places]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_grouped_hosts_have_the_places_that_horovodrun_assigns(counts):
    horovod_hosts = pytest.importorskip('horovod.runner.common.util.hosts')
    hosts = ['host%d' % number for number, count in enumerate(counts) for _ in range(count)]
    infos = [horovod_hosts.HostInfo('host%d' % number, count) for number, count in enumerate(counts)]
    slots = horovod_hosts.get_host_assignments(infos, len(hosts))
    assert places_of(hosts) == [tuple(getattr(slot, field) for field in FIELDS) for slot in slots]


@given(st.lists(st.sampled_from('abcd'), min_size=1, max_size=12))
def test_places_of_hosts_in_any_order_are_consistent(hosts):
    places = [SimpleNamespace(**dict(zip(FIELDS, place))) for place in places_of(hosts)]
    assert [place.rank for place in places] == list(range(len(hosts)))
    assert [place.hostname for place in places] == hosts
    assert {place.size for place in places} == {len(hosts)}
    for host in set(hosts):
        here = [place for place in places if place.hostname == host]
        assert [place.local_rank for place in here] == list(range(len(here)))
        assert {place.local_size for place in here} == {len(here)}
    by_local_rank = collections.defaultdict(list)
    for place in places:
        by_local_rank[place.local_rank].append(place)
    for peers in by_local_rank.values():
        assert sorted(place.cross_rank for place in peers) == list(range(len(peers)))
        assert {place.cross_size for place in peers} == {len(peers)}
