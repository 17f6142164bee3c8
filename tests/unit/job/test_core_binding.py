"""The division of a host's cores among its workers."""
import os
import threading

import pytest

from mxhybrid.base.errors import SettingError
from mxhybrid.job import core_binding
from mxhybrid.job.core_binding import in_order, shares_of

pytestmark = pytest.mark.both_pythons


@pytest.mark.parametrize('machines, cores_by_rank, threads, shares', [
    ('aa', [[0, 1]] * 2, None, [[0], [1]]),
    ('aa', [[0, 4, 1, 5, 2]] * 2, None, [[0, 4], [1, 5, 2]]),
    ('aaa', [[7, 3, 5]] * 3, None, [[7], [3], [5]]),
    ('abab', [[0, 1], [4, 5, 6, 7]] * 2, None, [[0], [4, 5], [1], [6, 7]]),
    ('ab', [[0, 1], [0, 1]], None, [None, None]),              # each worker has a machine for itself
    ('aa', [[0, 1], [2, 3]], None, [None, None]),              # the launcher has bound them
    ('aab', [[2], [3], [2]], None, [None, None, None]),
    ('aaaa', [[4, 5]] * 4, None, [[4], [4], [5], [5]]),        # two share a core
    # By default, workers are bound only if their threads fill their machine.
    ('aa', [[0, 1]] * 2, [1, 1], [[0], [1]]),
    ('aa', [[0, 1, 2, 3]] * 2, [2, 2], [[0, 1], [2, 3]]),
    ('aa', [[0, 1, 2, 3]] * 2, [1, 1], [None, None]),          # cores are free
    ('aaaa', [[0, 1]] * 4, [1] * 4, [None] * 4),               # more threads than cores
    ('aa', [[0, 1]] * 2, [None, None], [None, None]),          # each worker computes on all cores
    ('aa', [[0, 1, 2]] * 2, [1, 2], [None, None]),
    ('aabb', [[0, 1]] * 2 + [[0, 1, 2]] * 2, [1] * 4, [[0], [1], None, None]),
    ('aa', [[0, 1], [1, 2]], [1, 1], [None, None]),            # bound by the launcher, as far as it goes
    ('ab', [[0], [0]], [1, 1], [None, None])])
def test_shares(machines, cores_by_rank, threads, shares):
    assert shares_of(['host'] * len(machines), list(machines), cores_by_rank, threads) == shares


@pytest.mark.parametrize('cores_by_rank, message', [
    ([[0, 1]] * 3, 'MXHYBRID_BIND_TO_CORES=1: host h has 2 cores for 3 workers, which cannot share them equally: start '
                   '2 or 4 workers on it, or set it to 0'),
    ([[0], [1, 2], [2, 3]], 'MXHYBRID_BIND_TO_CORES=1: on host h, worker 1 may use cores 1, 2 and worker 2 cores 2, 3: '
                            'let the launcher bind them to the same cores, to different ones or to none, or set it to '
                            '0')])
def test_cores_that_cannot_be_divided(cores_by_rank, message):
    with pytest.raises(SettingError) as raised:
        shares_of(['h'] * 3, ['a'] * 3, cores_by_rank)
    assert str(raised.value) == message


def test_hyperthreads_of_a_core_are_neighbours(tmp_path, monkeypatch):
    monkeypatch.setattr(core_binding, '_TOPOLOGY', str(tmp_path / 'cpu%d_%s'))
    for core in range(8):  # two processors of two cores, with two hyperthreads each
        (tmp_path / ('cpu%d_physical_package_id' % core)).write_text('%d\n' % (core % 2))
        (tmp_path / ('cpu%d_core_id' % core)).write_text('%d\n' % (core // 2 % 2))
    assert in_order(set(range(8))) == [0, 4, 2, 6, 1, 5, 3, 7]


def test_order_where_the_system_hides_the_processors(tmp_path, monkeypatch):
    monkeypatch.setattr(core_binding, '_TOPOLOGY', str(tmp_path / 'cpu%d_%s'))
    assert in_order({5, 1, 3}) == [1, 3, 5]


def test_all_threads_are_bound(monkeypatch):
    bound, stop = {}, threading.Event()
    monkeypatch.setattr(os, 'sched_setaffinity', lambda thread, cores: bound.update({thread: cores}))
    thread = threading.Thread(target=stop.wait, args=(60,))
    thread.start()
    core_binding._bind([3])
    stop.set()
    thread.join()
    assert bound[threading.get_native_id()] == bound[thread.native_id] == [3]
