"""Bytes between hosts are counted as the connections carry them."""
import contextlib
import socket
import threading
import time

import numpy as np
import pytest

from mxhybrid.lane.worker import _KINDS, _MESSAGES

from .hosts import FENCE, SGD, UNCACHED, Hosts

pytestmark = pytest.mark.both_pythons

PUSH, PULL, ROWS, _, PART, TOTAL, MOVE, TAKEN = range(1, 9)
#: Of a fragment, and of a message.
FRAGMENT, HEADER = 4, 32


class Watched(Hosts):
    """What a connection carries passes through here, which counts: bytes by sender and receiver."""

    def __init__(self, *shape):
        self.carried = {}
        super().__init__(*shape)

    def join(self, one, other):
        ends = {}
        for agent, peer in ((one, other), (other, one)):
            ends[agent], theirs = socket.socketpair()
            self.carried[agent, peer] = 0
            self.give(agent, peer, theirs)
        for agent, peer in ((one, other), (other, one)):
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
    """Two hosts of two workers, the first with two agents; no connection of theirs stands between."""
    made = Watched([2, 2], [2, 1])
    yield made
    made.close()
    assert made.failures == []


def still(made):
    """Counts of both hosts, once they have stopped moving."""
    before = None
    while True:
        found = made.traffic(0), made.traffic(2)
        if found == before and found[0][0] == found[1][1] and found[1][0] == found[0][1]:
            return found
        before = found
        time.sleep(0.05)


@pytest.mark.timeout(60)
def test_counts_are_what_the_connections_carry_and_both_ends_agree(job):
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
            job.wait(worker, 0, job.post(worker, 0, [], FENCE), 0)
        return True
    assert job.everywhere(train) == [True] * 4
    (sent, received), (sent_there, received_there) = still(job)
    assert sent == received_there and sent_there == received
    assert sum(sent) == job.carried[0, 2] + job.carried[1, 2]
    assert sum(sent_there) == job.carried[2, 0] + job.carried[2, 1]
    assert all(sent[kind] > 0 for kind in (PUSH, PULL, ROWS, PART, TOTAL)) and sent[0] == sent[4] == 0
    assert job.traffic(1) == (sent, received)  # any worker of the host sees the same


@pytest.mark.timeout(60)
def test_each_kind_has_the_bytes_of_its_messages(job):
    job.table(0, 100, 8, [0, 2])
    job.rule(0, SGD, lr=0.1)
    ids = np.arange(100)
    job.everywhere(lambda worker: job.push(worker, 0, ids, np.ones((100, 8))))
    still(job)  # or an answer may share a fragment with a push
    job.pull(0, 0, ids)
    (sent, received), _ = still(job)
    local_ids, rows = 50 * 4, 50 * 8 * 4
    assert sent[PUSH] == received[PUSH] == FRAGMENT + HEADER + local_ids + rows
    assert sent[PULL] == FRAGMENT + HEADER + local_ids and received[ROWS] == FRAGMENT + HEADER + rows
    assert received[PULL] == sent[ROWS] == 0
    sums = job.allreduce(6, 'float32', 16384)  # two pieces of 32 kB, one of each host
    job.everywhere(lambda worker: sums[worker].run(np.ones(16384)))
    (sent, received), _ = still(job)
    for counts in (sent, received):  # both may be in one fragment
        for kind in (PART, TOTAL):
            assert counts[kind] - HEADER - 8192 * 4 in (0, FRAGMENT)


def test_users_are_told_of_all_kinds_but_the_last_word():
    told = sorted(kind for kinds in _MESSAGES.values() for kind in kinds)
    assert told == [PUSH, PULL, ROWS, PART, TOTAL, MOVE, TAKEN]
    assert _KINDS == 9
