"""Cluster files: a saved cluster is loaded again, and impossible values are refused by their keys."""
import copy
import dataclasses
import json

import pytest

from mxhybrid.base.errors import InputError
from mxhybrid.planner.cluster.cluster_spec import COST_KINDS, Cluster, Host, TransferCost, cluster_from_json, load, save
from mxhybrid.planner.simulator.resource_groups import TokenBucket

CLUSTER = Cluster((Host('a', 2, 2.0, 0.0, 1.0, 1 << 30), Host('b', 1, 0.4, 0.001, 0.5)),
                  TokenBucket(1e7, 1e8, 1e5), 1e-4, TokenBucket(1e10), 0.0,
                  {kind: TransferCost(1e-4, 1e-5, 1e-9, 1e-4) for kind in COST_KINDS})


def without(value, *keys):
    """Return a deep copy without a key."""
    result = copy.deepcopy(value)
    inner = result
    for key in keys[:-1]:
        inner = inner[key]
    del inner[keys[-1]]
    return result


def changed(value, new, *keys):
    """Return a deep copy with another value of a key."""
    result = copy.deepcopy(value)
    inner = result
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = new
    return result


WRITTEN = json.loads(json.dumps(CLUSTER.as_json()))

#: A cluster with a reference, and with cores that slow each other down.
SLOWED = dataclasses.replace(CLUSTER, reference=(0.006, 0.005, 0.004), hosts=(
    Host('a', 3, 3.0, 0.0, 0.8, 1 << 30, (1.0, 0.9, 0.8), (1.0, 0.7, 0.6)), CLUSTER.hosts[1]))
MORE = json.loads(json.dumps(SLOWED.as_json()))


def test_a_saved_cluster_is_loaded(tmp_path):
    path = str(tmp_path / 'cluster.json')
    save(path, CLUSTER)
    assert load(path) == CLUSTER and load(path).digest() == CLUSTER.digest()
    assert CLUSTER.ranks == 3


def test_known_speeds_and_references_are_in_the_file(tmp_path):
    path = str(tmp_path / 'cluster.json')
    save(path, SLOWED)
    assert load(path) == SLOWED and load(path).digest() == SLOWED.digest() != CLUSTER.digest()
    # Digests of clusters without them are those of former versions.
    assert 'reference' not in WRITTEN and not any('speeds' in host for host in WRITTEN['hosts'])
    loaded = cluster_from_json(without(MORE, 'hosts', 0, 'speed'))
    assert loaded == SLOWED and loaded.hosts[0].speed == 0.8


def test_speeds_by_the_number_of_busy_cores():
    assert [host.speeds_of(2) for host in SLOWED.hosts] == [[1.0, 0.9], [0.5, 0.5]]
    assert [host.speeds_of(4) for host in SLOWED.hosts] == [[1.0, 0.9, 0.8, 0.8], [0.5] * 4]
    assert [host.speeds_of(4, memory=True) for host in SLOWED.hosts] == [[1.0, 0.7, 0.6, 0.6], [0.5] * 4]
    # Older files have one list for all work.
    older = cluster_from_json(without(MORE, 'hosts', 0, 'memory_speeds')).hosts[0]
    assert older.speeds_of(3, memory=True) == older.speeds_of(3) == [1.0, 0.9, 0.8]


@pytest.mark.parametrize('value, words', [
    (changed(MORE, 0.9, 'hosts', 0, 'speeds'), 'hosts[0].speeds=0.9: give a list of numbers above 0'),
    (changed(MORE, [1.0, 0.0], 'hosts', 0, 'speeds'), 'hosts[0].speeds=[1.0, 0.0]: give a list of numbers above 0'),
    (changed(MORE, [True], 'hosts', 0, 'speeds'), 'hosts[0].speeds=[True]: give a list of numbers above 0'),
    (changed(MORE, [1.0, 1.15], 'hosts', 0, 'speeds'), 'hosts[0].speeds=[1.0, 1.15]: give numbers that do not grow'),
    (changed(MORE, [1.0, 0.9], 'hosts', 0, 'speeds'), 'hosts[0].speed=0.8: give the last one of speeds, 0.9, or leave'),
    (changed(MORE, [1.0, 0.0, 0.0], 'hosts', 0, 'memory_speeds'),
     'hosts[0].memory_speeds=[1.0, 0.0, 0.0]: give a list of numbers above 0'),
    (changed(MORE, [1.0, 0.7, 0.8], 'hosts', 0, 'memory_speeds'),
     'hosts[0].memory_speeds=[1.0, 0.7, 0.8]: give numbers that do not grow'),
    (changed(MORE, [1.0, 0.7], 'hosts', 0, 'memory_speeds'),
     'hosts[0].memory_speeds=[1.0, 0.7]: give as many numbers as speeds has'),
    (changed(MORE, [0.9, 0.7, 0.6], 'hosts', 0, 'memory_speeds'),
     'hosts[0].memory_speeds=[0.9, 0.7, 0.6]: give as many numbers as speeds has, and the same first one'),
    (changed(MORE, 3, 'reference'), 'reference=3: give an object'),
    (without(MORE, 'reference', 'memory'), 'reference.memory=None: give a number'),
    (changed(MORE, 0, 'reference', 'dense'), 'reference.dense=0.0: give seconds, more than 0')])
def test_impossible_speeds_and_references_are_refused(value, words):
    with pytest.raises(InputError) as caught:
        cluster_from_json(value)
    assert 'cluster: ' + words in str(caught.value)


def test_optional_keys_have_defaults():
    short = {'format': WRITTEN['format'], 'hosts': [{'ranks': 1, 'cores': 1}], 'link': {'rate': 1},
             'memory': {'rate': 2},
             'costs': {kind: {'fixed_s': 0, 'per_item_s': 0, 'per_byte_s': 0} for kind in COST_KINDS}}
    loaded = cluster_from_json(short)
    assert loaded.hosts == (Host('host0', 1, 1.0),) and loaded.measured is None
    assert (loaded.link, loaded.link_latency_s, loaded.memory) == (TokenBucket(1.0), 0.0, TokenBucket(2.0))
    assert loaded.digest() != CLUSTER.digest()


def test_a_cluster_measured_on_a_busy_machine_warns():
    loaded = cluster_from_json(changed(WRITTEN, 'other programs use 45 % of the processors of hostA', 'busy'))
    assert ('measured on a busy machine: other programs use 45 % of the processors of hostA: the predictions may be '
            'wrong: calibrate again') in loaded.warning
    assert cluster_from_json(loaded.as_json()) == loaded and CLUSTER.warning == '' and 'busy' not in WRITTEN


@pytest.mark.parametrize('value, words', [
    ([], 'no format'), (without(WRITTEN, 'format'), 'no format'), (changed(WRITTEN, 'x', 'format'), 'no format'),
    (changed(WRITTEN, 1, 'size'), 'size is no key: remove it; the keys are busy, costs, format, hosts'),
    (without(WRITTEN, 'hosts'), 'hosts=None: give a list of at least one'),
    (changed(WRITTEN, [], 'hosts'), 'hosts=[]'), (changed(WRITTEN, {}, 'hosts'), 'hosts={}'),
    (changed(WRITTEN, 3, 'hosts', 0), 'hosts[0]=3: give an object'),
    (without(WRITTEN, 'hosts', 1, 'ranks'), 'hosts[1].ranks=None: give a whole number of at least 1'),
    (changed(WRITTEN, 0, 'hosts', 0, 'ranks'), 'hosts[0].ranks=0'),
    (changed(WRITTEN, True, 'hosts', 0, 'ranks'), 'hosts[0].ranks=True'),
    (changed(WRITTEN, 1.5, 'hosts', 0, 'ranks'), 'hosts[0].ranks=1.5'),
    (without(WRITTEN, 'hosts', 0, 'cores'), 'hosts[0].cores=None: give a number'),
    (changed(WRITTEN, 0, 'hosts', 0, 'cores'), 'hosts[0].cores=0.0: give more than 0'),
    (changed(WRITTEN, 'two', 'hosts', 0, 'cores'), "hosts[0].cores='two': give a number"),
    (changed(WRITTEN, -1, 'hosts', 0, 'burst_s'), 'hosts[0].burst_s=-1: give a number of at least 0'),
    (changed(WRITTEN, 0, 'hosts', 1, 'speed'), 'hosts[1].speed=0.0: give more than 0'),
    (changed(WRITTEN, 0.5, 'hosts', 0, 'memory_bytes'), 'hosts[0].memory_bytes=0.5: give a whole number, or null'),
    (changed(WRITTEN, 0, 'hosts', 0, 'memory_bytes'), 'hosts[0].memory_bytes=0'),
    (changed(WRITTEN, True, 'hosts', 0, 'memory_bytes'), 'hosts[0].memory_bytes=True'),
    (changed(WRITTEN, [1], 'hosts', 0, 'name'), 'hosts[0].name=[1]: give a text'),
    (changed(WRITTEN, 10 ** 7, 'hosts', 0, 'ranks'), 'hosts[].ranks: 10000001 in all: give at most 16384'),
    (changed(WRITTEN, 1, 'hosts', 0, 'gpus'), 'hosts[0].gpus is no key: remove it; the keys are burst_s, cores, '
                                              'memory_bytes, memory_speeds, name, ranks, speed, speeds'),
    (without(WRITTEN, 'link'), 'link=None: give an object'), (without(WRITTEN, 'memory'), 'memory=None'),
    (without(WRITTEN, 'link', 'rate'), 'link.rate=None: give a number'),
    (changed(WRITTEN, 0, 'link', 'rate'), 'link.rate=0.0: give bytes a second, more than 0'),
    (changed(WRITTEN, 10 ** 400, 'link', 'rate'), 'link.rate=1000'),
    (changed(WRITTEN, float('inf'), 'memory', 'rate'), 'memory.rate=inf: give a number'),
    (changed(WRITTEN, float('nan'), 'memory', 'rate'), 'memory.rate=nan: give a number'),
    (changed(WRITTEN, 1e6, 'link', 'peak'), 'link.burst=100000.0: give a peak above the rate with it, not 1000000.0'),
    (changed(WRITTEN, -1, 'link', 'latency_s'), 'link.latency_s=-1'),
    (changed(WRITTEN, None, 'link', 'burst'), 'link.burst=None'),
    (changed(WRITTEN, 1, 'memory', 'mtu'), 'memory.mtu is no key'),
    (without(WRITTEN, 'costs'), 'costs=None: give an object'),
    (without(WRITTEN, 'costs', 'push'), 'costs: there is no push: give all of group_sum, pull'),
    (changed(WRITTEN, {}, 'costs', 'pulls'), 'costs.pulls is no key: remove it; the keys are group_sum'),
    (changed(WRITTEN, 1e31, 'costs', 'sum', 'fixed_s'), 'costs.sum.fixed_s=1e+31: give a number of at least 0, and at'),
    (changed(WRITTEN, 1, 'costs', 'sum'), 'costs.sum=1: give an object'),
    (without(WRITTEN, 'costs', 'sum', 'fixed_s'), 'costs.sum.fixed_s=None: give a number'),
    (changed(WRITTEN, '1', 'costs', 'push', 'per_item_s'), "costs.push.per_item_s='1'"),
    (changed(WRITTEN, False, 'costs', 'pull', 'per_byte_s'), 'costs.pull.per_byte_s=False'),
    (changed(WRITTEN, -1e-3, 'costs', 'step', 'latency_s'), 'costs.step.latency_s=-0.001'),
    (changed(WRITTEN, 1, 'costs', 'step', 'per_mb_s'), 'costs.step.per_mb_s is no key')],
    ids=lambda value: str(value)[:48])
def test_impossible_values_are_refused_by_their_keys(value, words):
    with pytest.raises(InputError) as raised:
        cluster_from_json(value)
    assert words in str(raised.value)


def test_unreadable_files_are_refused(tmp_path):
    path = tmp_path / 'cluster.json'
    with pytest.raises(InputError, match='cannot read .*cluster.json'):
        load(str(path))
    path.write_text('[' * 100000)
    with pytest.raises(InputError, match='cannot read'):
        load(str(path))
    path.write_text('{"format": ')
    with pytest.raises(InputError, match='cannot read'):
        load(str(path))
    path.write_text('{}')
    with pytest.raises(InputError, match='cluster.json: cluster: there is no format'):
        load(str(path))
