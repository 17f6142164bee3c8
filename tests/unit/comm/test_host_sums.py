"""Sums within a host: a leader and its followers, all in this process, on real shared memory and MXNet's engine."""
import contextlib
import gc
import os
import socket
import threading

import mxnet as mx
import numpy as np
import pytest

from mxhybrid.base.local_sockets import Connection
from mxhybrid.comm.host_sums import COLUMNS, FollowerReduction, LeaderReduction

TIMEOUT_S = 30


@contextlib.contextmanager
def host(workers):
    """Workers of one host; the leader is the first one."""
    failures = []
    pairs = {rank: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for rank in range(1, workers)}
    leader = LeaderReduction({rank: Connection(pair[0]) for rank, pair in pairs.items()}, failures.append, TIMEOUT_S,
                             None)
    everybody = [leader] + [FollowerReduction({0: Connection(pair[1])}, failures.append, TIMEOUT_S)
                            for pair in pairs.values()]
    try:
        yield everybody
        mx.nd.waitall()
    finally:
        for worker in everybody:
            worker.close()
    assert not failures


@pytest.mark.parametrize('workers', [1, 2, 4])
@pytest.mark.parametrize('shape', [(1,), (3, 5), (700, 300)])
@pytest.mark.parametrize('dtype', ['float32', 'int64'])
def test_sums_equal_numpys(workers, shape, dtype):
    with host(workers) as everybody:
        arrays = [mx.nd.zeros(shape, dtype=dtype) for _ in everybody]
        for step in range(3):
            values = [np.random.RandomState([step, rank]).randint(-9, 10, shape).astype(dtype)
                      for rank in range(workers)]
            for worker, array, value in zip(everybody, arrays, values):
                array[:] = mx.nd.array(value, dtype=dtype)
                worker.allreduce_(array, 'x', 0)
            for array in arrays:
                np.testing.assert_array_equal(array.asnumpy(), sum(values))


def test_many_sums_in_other_orders_and_nobody_waits():
    with host(3) as everybody:
        arrays = [[mx.nd.zeros(i % 9 + 1) for i in range(300)] for _ in everybody]
        for step in range(3):
            for rank, worker in enumerate(everybody):
                for i in np.random.RandomState([step, rank]).permutation(300):
                    arrays[rank][i][:] = i + rank
                    worker.allreduce_(arrays[rank][i], 'x%d' % i, -i)
        for rank in range(3):
            for i in range(300):
                np.testing.assert_array_equal(arrays[rank][i].asnumpy(), 3 * i + 3)


def test_what_is_pushed_before_and_after_a_sum_keeps_its_order():
    with host(2) as everybody:
        arrays = [mx.nd.ones(1000) for _ in everybody]
        # Worker by worker in each round: MXNet's operators share scratch memory, so one may wait for those before it.
        for _ in range(20):
            for worker, array in zip(everybody, arrays):
                array *= 3
                worker.allreduce_(array, 'x', 0)
                array /= 6
        for array in arrays:
            np.testing.assert_array_equal(array.asnumpy(), 1)


def test_what_is_served():
    with host(1) as (leader,):
        for dtype in ('float16', 'float32', 'float64', 'int32', 'int64'):
            assert leader.serves(mx.nd.zeros(1, dtype=dtype), 'x')
        assert not leader.serves(mx.nd.zeros(1, dtype='uint8'), 'x')
        with mx.util.np_shape(True):
            assert not leader.serves(mx.nd.zeros((0, 3)), 'x')


def test_sums_beyond_the_columns_are_left_to_others():
    with host(2) as everybody:
        array = mx.nd.zeros(1)
        array.wait_to_read()
        for worker in everybody:
            worker.allreduce_(mx.nd.zeros(1), 'known', 0)
        for worker in everybody:
            worker._sums.update((str(i), None) for i in range(COLUMNS))
            assert not worker.serves(array, 'new')
            assert worker.serves(array, 'known')


def test_sums_that_are_forgotten_leave_their_room_to_others():
    with host(3) as everybody:
        for turn in range(6):
            names = ['store%d.x%d' % (turn, i) for i in range(40)] + ['stays']
            arrays = [{name: mx.nd.full(5000 + at % 7, at + rank) for at, name in enumerate(names)}
                      for rank in range(3)]
            for _ in range(2):
                for rank, worker in enumerate(everybody):
                    for at in np.random.RandomState([turn, rank]).permutation(len(names)):
                        worker.allreduce_(arrays[rank][names[at]], names[at], 0)
            for rank in range(3):
                for at, name in enumerate(names):
                    assert (arrays[rank][name].asnumpy() == 3 * (3 * at + 3)).all(), (turn, name)
            for worker in everybody:
                worker.forget(('store%d.' % turn,))
                assert [key.split()[0] for key in worker._sums] == ['stays']
        assert everybody[0]._known == 41
        for worker in everybody:
            assert sum(segment.nbytes for segment in worker._arena._segments) < 24 << 20  # one segment and its headroom


def what_is_open():
    """Files, sockets and threads of this process; not their number, since those of other tests may end meanwhile."""
    found = set(threading.enumerate())
    for name in os.listdir('/proc/self/fd'):
        path = os.path.join('/proc/self/fd', name)
        if os.path.islink(path):  # not the one that listed them
            found.add(os.readlink(path))
    return found


def test_nothing_stays():
    with host(3) as everybody:  # what is made once: threads of the engine, say
        for worker in everybody:
            worker.allreduce_(mx.nd.ones(10), 'x', 0)
    before = what_is_open()
    with host(3) as everybody:
        for worker in everybody:
            worker.allreduce_(mx.nd.ones(10), 'x', 0)
        assert what_is_open() - before
    gc.collect()
    assert what_is_open() - before == set()
