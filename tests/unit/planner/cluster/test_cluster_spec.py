"""Cluster files: a saved cluster is loaded again, and impossible values are refused by their keys."""
import copy
import dataclasses
import functools
import json
import operator

import pytest

from mxhybrid.base.errors import InputError
from mxhybrid.planner.cluster.cluster_spec import COST_KINDS, Cluster, Host, TransferCost, cluster_from_json, load, save
from mxhybrid.planner.simulator.resource_groups import TokenBucket

CLUSTER = Cluster((Host('a', 2, 2.0, 0.0, 1.0, 1 << 30), Host('b', 1, 0.4, 0.001, 0.5)),
                  TokenBucket(1e7, 1e8, 1e5), 1e-4, TokenBucket(1e10), 0.0,
                  {kind: TransferCost(1e-4, 1e-5, 1e-9, 1e-4) for kind in COST_KINDS})


#: The value of a key that is left out.
MISSING = object()


def changed(value, path, new):
    """Return a deep copy with another value of a key; its path has all keys that lead to it, with dots between."""
    result = copy.deepcopy(value)
    *keys, last = [int(key) if key.isdigit() else key for key in path.split('.')]
    inner = functools.reduce(operator.getitem, keys, result)
    inner[last] = new
    if new is MISSING:
        del inner[last]
    return result


WRITTEN = json.loads(json.dumps(CLUSTER.as_json()))

#: A cluster with a reference, and with cores that slow each other down.
SLOWED = dataclasses.replace(CLUSTER, reference=(0.006, 0.005, 0.004), hosts=(
    Host('a', 3, 3.0, 0.0, 0.8, 1 << 30, (1.0, 0.9, 0.8), (1.0, 0.7, 0.6)), CLUSTER.hosts[1]))
MORE = json.loads(json.dumps(SLOWED.as_json()))


@pytest.mark.parametrize('cluster', [CLUSTER, SLOWED], ids=['CLUSTER', 'SLOWED'])
def test_a_saved_cluster_is_loaded(tmp_path, cluster):
    path = str(tmp_path / 'cluster.json')
    save(path, cluster)
    assert load(path) == cluster and load(path).digest() == cluster.digest()
    assert CLUSTER.ranks == 3 and CLUSTER.digest() != SLOWED.digest()


def test_known_speeds_and_references_are_in_the_file():
    # Digests of clusters without them are those of former versions.
    assert 'reference' not in WRITTEN and not any('speeds' in host for host in WRITTEN['hosts'])
    loaded = cluster_from_json(changed(MORE, 'hosts.0.speed', MISSING))
    assert loaded == SLOWED and loaded.hosts[0].speed == 0.8


def test_speeds_by_the_number_of_busy_cores():
    assert [host.speeds_of(2) for host in SLOWED.hosts] == [[1.0, 0.9], [0.5, 0.5]]
    assert [host.speeds_of(4) for host in SLOWED.hosts] == [[1.0, 0.9, 0.8, 0.8], [0.5] * 4]
    assert [host.speeds_of(4, memory=True) for host in SLOWED.hosts] == [[1.0, 0.7, 0.6, 0.6], [0.5] * 4]
    # Older files have one list for all work.
    older = cluster_from_json(changed(MORE, 'hosts.0.memory_speeds', MISSING)).hosts[0]
    assert older.speeds_of(3, memory=True) == older.speeds_of(3) == [1.0, 0.9, 0.8]


def test_optional_keys_have_defaults():
    short = {'format': WRITTEN['format'], 'hosts': [{'ranks': 1, 'cores': 1}], 'link': {'rate': 1},
             'memory': {'rate': 2},
             'costs': {kind: {'fixed_s': 0, 'per_item_s': 0, 'per_byte_s': 0} for kind in COST_KINDS}}
    loaded = cluster_from_json(short)
    assert loaded.hosts == (Host('host0', 1, 1.0),) and loaded.measured is None
    assert (loaded.link, loaded.link_latency_s, loaded.memory) == (TokenBucket(1.0), 0.0, TokenBucket(2.0))
    assert loaded.digest() != CLUSTER.digest()


def test_a_cluster_measured_on_a_busy_machine_warns():
    loaded = cluster_from_json(changed(WRITTEN, 'busy', 'other programs use 45 % of the processors of hostA'))
    assert ('measured on a busy machine: other programs use 45 % of the processors of hostA: the predictions may be '
            'wrong: calibrate again') in loaded.warning
    assert cluster_from_json(loaded.as_json()) == loaded and CLUSTER.warning == '' and 'busy' not in WRITTEN


@pytest.mark.parametrize('path, value, words', [
    ('hosts.0.speeds', 0.9, 'hosts[0].speeds=0.9: give a list of numbers above 0'),
    ('hosts.0.speeds', [1.0, 0.0], 'hosts[0].speeds=[1.0, 0.0]: give a list of numbers above 0'),
    ('hosts.0.speeds', [True], 'hosts[0].speeds=[True]: give a list of numbers above 0'),
    ('hosts.0.speeds', [1.0, 1.15], 'hosts[0].speeds=[1.0, 1.15]: give numbers that do not grow'),
    ('hosts.0.speeds', [1.0, 0.9], 'hosts[0].speed=0.8: give the last one of speeds, 0.9, or leave'),
    ('hosts.0.memory_speeds', [1.0, 0.0, 0.0],
     'hosts[0].memory_speeds=[1.0, 0.0, 0.0]: give a list of numbers above 0'),
    ('hosts.0.memory_speeds', [1.0, 0.7, 0.8],
     'hosts[0].memory_speeds=[1.0, 0.7, 0.8]: give numbers that do not grow'),
    ('hosts.0.memory_speeds', [1.0, 0.7], 'hosts[0].memory_speeds=[1.0, 0.7]: give as many numbers as speeds has'),
    ('hosts.0.memory_speeds', [0.9, 0.7, 0.6],
     'hosts[0].memory_speeds=[0.9, 0.7, 0.6]: give as many numbers as speeds has, and the same first one'),
    ('reference', 3, 'reference=3: give an object'),
    ('reference.memory', MISSING, 'reference.memory=None: give a number'),
    ('reference.dense', 0, 'reference.dense=0.0: give seconds, more than 0'), ('format', MISSING, 'there is no format'),
    ('format', 'x', 'there is no format'),
    ('size', 1, 'size is no key: remove it; the keys are busy, costs, format, hosts'),
    ('hosts', MISSING, 'hosts=None: give a list of at least one'), ('hosts', [], 'hosts=[]'), ('hosts', {}, 'hosts={}'),
    ('hosts.0', 3, 'hosts[0]=3: give an object'),
    ('hosts.1.ranks', MISSING, 'hosts[1].ranks=None: give a whole number of at least 1'),
    ('hosts.0.ranks', 0, 'hosts[0].ranks=0'), ('hosts.0.ranks', True, 'hosts[0].ranks=True'),
    ('hosts.0.ranks', 1.5, 'hosts[0].ranks=1.5'), ('hosts.0.cores', MISSING, 'hosts[0].cores=None: give a number'),
    ('hosts.0.cores', 0, 'hosts[0].cores=0.0: give more than 0'),
    ('hosts.0.cores', 'two', "hosts[0].cores='two': give a number"),
    ('hosts.0.burst_s', -1, 'hosts[0].burst_s=-1: give a number of at least 0'),
    ('hosts.1.speed', 0, 'hosts[1].speed=0.0: give more than 0'),
    ('hosts.0.memory_bytes', 0.5, 'hosts[0].memory_bytes=0.5: give a whole number, or null'),
    ('hosts.0.memory_bytes', 0, 'hosts[0].memory_bytes=0'),
    ('hosts.0.memory_bytes', True, 'hosts[0].memory_bytes=True'),
    ('hosts.0.name', [1], 'hosts[0].name=[1]: give a text'),
    ('hosts.0.ranks', 10 ** 7, 'hosts[].ranks: 10000001 in all: give at most 16384'),
    ('hosts.0.gpus', 1,
     'hosts[0].gpus is no key: remove it; the keys are burst_s, cores, memory_bytes, memory_speeds, name, ranks, '
     'speed, speeds'),
    ('link', MISSING, 'link=None: give an object'), ('memory', MISSING, 'memory=None'),
    ('link.rate', MISSING, 'link.rate=None: give a number'),
    ('link.rate', 0, 'link.rate=0.0: give bytes a second, more than 0'), ('link.rate', 10 ** 400, 'link.rate=1000'),
    ('memory.rate', float('inf'), 'memory.rate=inf: give a number'),
    ('memory.rate', float('nan'), 'memory.rate=nan: give a number'),
    ('link.peak', 1e6, 'link.burst=100000.0: give a peak above the rate with it, not 1000000.0'),
    ('link.latency_s', -1, 'link.latency_s=-1'), ('link.burst', None, 'link.burst=None'),
    ('memory.mtu', 1, 'memory.mtu is no key'), ('costs', MISSING, 'costs=None: give an object'),
    ('costs.push', MISSING, 'costs: there is no push: give all of group_sum, pull'),
    ('costs.pulls', {}, 'costs.pulls is no key: remove it; the keys are group_sum'),
    ('costs.sum.fixed_s', 1e31, 'costs.sum.fixed_s=1e+31: give a number of at least 0, and at'),
    ('costs.sum', 1, 'costs.sum=1: give an object'),
    ('costs.sum.fixed_s', MISSING, 'costs.sum.fixed_s=None: give a number'),
    ('costs.push.per_item_s', '1', "costs.push.per_item_s='1'"),
    ('costs.pull.per_byte_s', False, 'costs.pull.per_byte_s=False'),
    ('costs.step.latency_s', -1e-3, 'costs.step.latency_s=-0.001'),
    ('costs.step.per_mb_s', 1, 'costs.step.per_mb_s is no key'),
], ids=lambda value: 'missing' if value is MISSING else str(value)[:40])
def test_impossible_values_are_refused_by_their_keys(path, value, words):
    with pytest.raises(InputError) as raised:
        cluster_from_json(changed(MORE, path, value))
    assert 'cluster: ' + words in str(raised.value)


@pytest.mark.parametrize('text, words', [
    (None, 'cannot read .*cluster.json'), ('[' * 100000, 'cannot read'), ('{"format": ', 'cannot read'),
    ('{}', 'cluster.json: cluster: there is no format'), ('[]', 'cluster.json: cluster: there is no format')],
    ids=['no file', 'nested lists', 'half a file', 'no format', 'a list'])
def test_unreadable_files_are_refused(tmp_path, text, words):
    path = tmp_path / 'cluster.json'
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=words):
        load(str(path))
