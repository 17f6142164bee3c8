"""Counts of the bytes between hosts are equal to the bytes on the connections."""
import contextlib
import socket
import threading

import numpy as np
import pytest

from mxhybrid.lane.worker import _KINDS, _MESSAGES

from .hosts import FENCE, SGD, UNCACHED, Hosts, hosts

pytestmark = pytest.mark.both_pythons

PUSH, PULL, ROWS, _, CONTRIBUTION, RESULT, RING_DATA, RING_CREDIT = range(1, 9)
#: Bytes of the head of a fragment, and of a message.
FRAGMENT, HEADER = 4, 32


class CountedConnections(Hosts):
    """Hosts whose connections pass through the test, which counts the bytes by sender and receiver."""

    def __init__(self, *shape):
        self.carried = {}
        super().__init__(*shape)

    def join(self, first, second):
        ends = {}
        directions = (first, second), (second, first)
        for agent, peer in directions:
            ends[agent], agent_end = socket.socketpair()
            self.carried[agent, peer] = 0
            self.give(agent, peer, agent_end)
        for agent, peer in directions:
            threading.Thread(target=self.carry, args=(agent, peer, ends[agent], ends[peer]), daemon=True).start()

    def carry(self, agent, peer, source, target):
        with source, contextlib.suppress(OSError):  # an agent may close first
            while True:
                data = source.recv(1 << 16)
                if not data:
                    break
                self.carried[agent, peer] += len(data)
                target.sendall(data)


@pytest.fixture
def job():
    """Create two hosts of two workers each, the first with two agents."""
    with hosts([2, 2], [2, 1], kind=CountedConnections) as job:
        yield job


def test_counts_are_those_of_the_connections_at_both_ends(job):
    job.table(0, 4000, 16, [0, 2, 1, 2])
    job.rule(0, SGD, lr=0.1)
    sums = job.allreduce(5, 'float32', 200000)
    job.everywhere(lambda worker: sums[worker].run(np.ones(200000)))

    def train(worker):
        for step in range(3):
            ids = np.arange(worker + step, 4000, 3)
            assert job.push(worker, 0, ids, np.ones((len(ids), 16)))
            for flags in (0, UNCACHED):
                job.pull(worker, 0, ids, flags)
            job.pull(worker, 0, [], FENCE)
    job.everywhere(train)
    (sent, received), (other_sent, other_received) = job.traffic(0), job.traffic(2)
    assert sent == other_received and other_sent == received
    assert sum(sent) == job.carried[0, 2] + job.carried[1, 2]
    assert sum(other_sent) == job.carried[2, 0] + job.carried[2, 1]
    assert all(sent[kind] > 0 for kind in (PUSH, PULL, ROWS, CONTRIBUTION, RESULT)) and sent[0] == sent[4] == 0
    assert job.traffic(1) == (sent, received)  # any worker of the host sees the same


def test_bytes_of_each_kind_of_message(job):
    job.table(0, 100, 8, [0, 2])
    job.rule(0, SGD, lr=0.1)
    ids = np.arange(100)
    job.everywhere(lambda worker: job.push(worker, 0, ids, np.ones((100, 8))))
    job.traffic(0)  # settled: otherwise an answer may share a fragment with a push
    job.pull(0, 0, ids)
    sent, received = job.traffic(0)
    local_ids, rows = 50 * 4, 50 * 8 * 4
    assert sent[PUSH] == received[PUSH] == FRAGMENT + HEADER + local_ids + rows
    assert sent[PULL] == FRAGMENT + HEADER + local_ids and received[ROWS] == FRAGMENT + HEADER + rows
    assert received[PULL] == sent[ROWS] == 0
    sums = job.allreduce(6, 'float32', 16384)  # two chunks of 32 kB, one for each host
    job.everywhere(lambda worker: sums[worker].run(np.ones(16384)))
    sent, received = job.traffic(0)
    for counts in (sent, received):  # both may be in one fragment
        for kind in (CONTRIBUTION, RESULT):
            assert counts[kind] - HEADER - 8192 * 4 in (0, FRAGMENT)


def test_all_kinds_but_bye_are_reported_to_users():
    reported = sorted(kind for kinds in _MESSAGES.values() for kind in kinds)
    assert reported == [PUSH, PULL, ROWS, CONTRIBUTION, RESULT, RING_DATA, RING_CREDIT]
    assert _KINDS == 9
