"""Partitions on the lane are updated to the same bits as MXNet's own optimizers update row_sparse weights."""
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import types

import mxnet as mx
import numpy as np
import pytest

from mxhybrid.lane import worker
from mxhybrid.lane.agent import Agent, Shape
from mxhybrid.lane.membership import Membership
from mxhybrid.lane.worker import Lane
from mxhybrid.messaging import local_sockets
from mxhybrid.native.arrays import make_row_sparse
from mxhybrid.native.optimizers import FLOAT32_STATE, attributes_of, reference_of
from mxhybrid.servers.partition_state import updated_optimizer
from mxhybrid.servers.protocol import ASSIGN, OPTIMIZE, overwrite_mode
from mxhybrid.servers.shard import Shard

from ...helpers.tables import STARTS, WITHOUT_DECAY, mxnets_partition

ROWS, WIDTH = 40, 5

#: Optimizers with their own settings, common settings, and types: MXNet keeps some state in float32 only.
CASES = [(name, settings, more, dtype) for name, starts in STARTS.items() for settings in starts
         for more in ({}, {'clip_gradient': 0.05}, {'wd': 0.1, 'rescale_grad': 0.25})
         for dtype in (('float32',) if name in FLOAT32_STATE else ('float32', 'float64', 'float16'))
         if not ('wd' in more and name in WITHOUT_DECAY)]


class OneShard:
    """The first of some workers of a job, one agent, and a table of one partition; failures are in `failures`."""

    def __init__(self, dtype, workers):
        self.failures = []
        self.agent = Agent('127.0.0.1', 'secret', self.update, self.failures.append)
        self.membership = Membership([self.agent.endpoint], [local_sockets.memory_domain()] * workers)
        self.agent.connect(self.membership, 10)
        self.lane = Lane(self.membership, 0)
        self.shape = Shape(ROWS, WIDTH, np.dtype(dtype).name, False, [0])
        self.agent.add_table(0, self.shape)
        self.table = types.SimpleNamespace(index=3, name='table', dtype=np.dtype(dtype), lag=0)
        self.lane.open(self.table, 0, self.shape)
        self.shard = Shard(17, 'table', self.agent, 0, 0, ROWS, WIDTH)
        self.optimizer = None

    def update(self, number, part, local_ids, rows):
        try:
            self.shard.update(self.optimizer, make_row_sparse(local_ids.astype(np.int64), rows, (ROWS, WIDTH)))
        except Exception as error:
            self.failures.append(repr(error))

    def optimize(self, optimizer, count=None):
        self.optimizer = updated_optimizer(self.optimizer, [self.shard], reference_of(optimizer),
                                           dict(attributes_of(optimizer), lr=optimizer.lr, wd=optimizer.wd), count)
        self.shard.set_mode(OPTIMIZE)

    def begin(self, weights, optimizer):
        """Assign weights and set an optimizer; return a partition of the same weights, and its optimizer, of MXNet."""
        self.shard.set_mode(ASSIGN)
        self.push(np.arange(ROWS), weights)
        self.optimize(optimizer)
        return mxnets_partition(weights, optimizer)

    def push(self, ids, rows):
        self.lane.push(self.table, ids, rows, 0)
        self.lane.settle()
        assert self.failures == []

    def open_tables(self, lane):
        """Open 19 more tables; `table` is the last of them."""
        for number in range(1, 20):
            self.agent.add_table(number, self.shape)
            self.table.index = number
            lane.open(self.table, number, self.shape)

    def pull(self):
        found = np.empty((ROWS, WIDTH), self.table.dtype)
        self.lane.request(self.table, np.arange(ROWS), 0)(found)
        return found

    def close(self):
        self.lane.close()
        self.agent.close()


@pytest.fixture
def start_shard():
    with contextlib.ExitStack() as stack:
        yield lambda dtype=np.float32, workers=1: stack.enter_context(contextlib.closing(OneShard(dtype, workers)))


def made_by_mxnet(name, settings):
    return mx.optimizer.create(name, learning_rate=0.1, **settings)


@pytest.mark.parametrize('name, settings, more, dtype', CASES)
def test_updates_to_the_same_bits_as_mxnet(start_shard, name, settings, more, dtype):
    optimizer = made_by_mxnet(name, dict(settings, **more))
    random = np.random.RandomState(0)
    weights = random.standard_normal((ROWS, WIDTH)).astype(dtype)
    bench = start_shard(dtype)
    reference, theirs = bench.begin(weights, optimizer)
    for _ in range(5):
        ids = np.flatnonzero(random.rand(ROWS) < 0.4)
        rows = random.standard_normal((len(ids), WIDTH)).astype(dtype)
        bench.push(ids, rows)
        reference.update(theirs, make_row_sparse(ids, rows, (ROWS, WIDTH)))
        np.testing.assert_array_equal(bench.pull(), reference.view)
    for slot, _ in enumerate(bench.shard.state_slots()):
        np.testing.assert_array_equal(bench.shard.read(slot, 0, ROWS, bench.optimizer),
                                      reference.read(slot, 0, ROWS, theirs))


#: Settings of which MXNet's operators get other floats than the nearest, by optimizer.
ODD = {'sgd': [{'wd': 3.3e-5}, {'momentum': 1.7e-5, 'wd': 2.9e-5}],
       'adam': [{'epsilon': np.float32(2.3e-7), 'beta2': np.float32(0.99)}, {'epsilon': 1.7e-7, 'wd': 2.9e-5}],
       'adagrad': [{'eps': 3.7e-7}, {'eps': np.float32(3.7e-7)}], 'groupadagrad': [{'eps': 3.7e-7}],
       'ftrl': [{'lamda1': 2.3e-5, 'beta': 7.7e-6, 'wd': 3.1e-5}]}


@pytest.mark.parametrize('name, settings, dtype', [
    (name, settings, dtype) for name, cases in ODD.items() for settings in cases
    for dtype in (('float32',) if name in FLOAT32_STATE else ('float32', 'float64'))])
def test_updates_have_mxnets_bits_at_any_rate(start_shard, name, settings, dtype):
    random = np.random.RandomState(1)
    optimizer = made_by_mxnet(name, dict(settings, rescale_grad=1.9e-5, clip_gradient=4.3e-5))
    weights = random.standard_normal((ROWS, WIDTH)).astype(dtype)
    bench = start_shard(dtype)
    reference, theirs = bench.begin(weights, optimizer)
    for rate in np.exp(random.uniform(np.log(1e-8), np.log(3), 60)):
        optimizer.lr = float(rate)
        bench.optimize(optimizer)
        theirs.change({'lr': optimizer.lr})
        rows = random.standard_normal((ROWS, WIDTH)).astype(dtype)
        bench.push(np.arange(ROWS), rows)
        reference.update(theirs, make_row_sparse(np.arange(ROWS), rows, (ROWS, WIDTH)))
        np.testing.assert_array_equal(bench.pull(), reference.view, err_msg='learning rate %r' % rate)


def test_a_push_without_state_touches_nothing(start_shard):
    bench = start_shard()
    bench.optimize(made_by_mxnet('sgd', {'momentum': 0.9}))
    bench.push(np.arange(ROWS), np.ones((ROWS, WIDTH)))
    before = bench.pull()
    bench.shard.forget_state()
    bench.optimizer = None  # as the handler then has none
    bench.lane.push(bench.table, np.arange(3), np.ones((3, WIDTH), np.float32), 0)
    bench.lane.settle()
    assert len(bench.failures) == 1
    np.testing.assert_array_equal(bench.pull(), before)


@pytest.mark.both_pythons
def test_another_users_process_does_not_end_the_agent(start_shard, monkeypatch):
    bench = start_shard()
    turned_away = threading.Event()
    monkeypatch.setattr(local_sockets, '_own_peer', lambda sock: turned_away.set())
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(b'\0' + bench.membership.agents[0].listener.encode())
        assert turned_away.wait(10)
    monkeypatch.undo()
    Lane(bench.membership, 0).close()  # somebody who comes later is let in
    assert bench.failures == []


#: Connects again and again to the socket that it is told, from several threads.
CALLER = '''
import socket, sys, threading
def call():
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            try:
                sock.connect(b'\\0' + sys.argv[1].encode())
            except OSError:
                return
threads = [threading.Thread(target=call) for _ in range(8)]
for thread in threads:
    thread.start()
print('calling', flush=True)
'''


@pytest.mark.both_pythons
def test_workers_are_answered_while_another_user_connects_without_end(start_shard, monkeypatch):
    bench = start_shard()
    monkeypatch.setattr(local_sockets, '_own_peer', lambda sock: local_sockets._credentials(sock)[0] == os.getpid())
    monkeypatch.setattr(worker, '_ANSWER_TIMEOUT_S', 30.0)
    with subprocess.Popen([sys.executable, '-c', CALLER, bench.membership.agents[0].listener],
                          stdout=subprocess.PIPE) as caller:
        try:
            assert caller.stdout.readline() == b'calling\n'
            late = Lane(bench.membership, 0)  # which meets the agent
            bench.open_tables(late)
            late.close()
        finally:
            caller.kill()
    assert bench.failures == []


def test_an_allreduce_opens_with_ranges_of_many_workers(start_shard):
    workers = 9000
    bench = start_shard(workers=workers)
    ends = [10007 * count // workers for count in range(1, workers + 1)]
    bench.lane.open_allreduce(7, 1, ends[-1], ends)  # the agent refuses ends that do not cover the array in order
    assert bench.failures == []


def shared_memory_descriptors():
    """Return the number of descriptors of shared memory that this process has open."""
    count = 0
    for name in os.listdir('/proc/self/fd'):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink('/proc/self/fd/' + name).startswith('/memfd:')
    return count


@pytest.mark.both_pythons
def test_descriptors_are_closed_once_all_have_mapped(start_shard):
    bench = start_shard()
    before = shared_memory_descriptors()
    bench.open_tables(bench.lane)
    deadline = time.monotonic() + 30  # the agent closes them in its own thread
    while shared_memory_descriptors() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert shared_memory_descriptors() <= before
    bench.agent.set_rule(19, 0, 'assign')
    bench.push(np.arange(ROWS), np.ones((ROWS, WIDTH)))
    assert (bench.pull() == 1).all()


@pytest.mark.parametrize('name', ['sgd', 'nag'])
def test_state_is_assigned_and_goes_on(start_shard, name):
    optimizer = made_by_mxnet(name, {'momentum': 0.9})
    bench = start_shard()
    bench.optimize(optimizer)
    state = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
    bench.shard.set_mode(overwrite_mode(0))
    bench.push(np.arange(ROWS), state)
    np.testing.assert_array_equal(bench.shard.read(0, 0, ROWS, bench.optimizer), state)
    bench.shard.set_mode(OPTIMIZE)
    bench.push(np.arange(3), np.zeros((3, WIDTH)))
    np.testing.assert_allclose(bench.shard.read(0, 0, 3, bench.optimizer), 0.9 * state[:3], rtol=1e-6)


def test_mxnet_takes_over_the_state_of_the_compiled_part(start_shard):
    bench = start_shard()
    bench.optimize(made_by_mxnet('sgd', {'momentum': 0.9}))
    bench.push(np.arange(ROWS), np.ones((ROWS, WIDTH)))
    before = bench.shard.read(0, 0, ROWS, bench.optimizer).copy()
    bench.optimize(made_by_mxnet('sgd', {'momentum': 0.9, 'lazy_update': False}))
    np.testing.assert_array_equal(bench.shard.read(0, 0, ROWS, bench.optimizer), before)
    weights = bench.pull()
    bench.push([], np.empty((0, WIDTH)))
    np.testing.assert_allclose(bench.pull(), weights + 0.9 * before, rtol=1e-6)
