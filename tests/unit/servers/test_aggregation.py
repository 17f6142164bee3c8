"""What the leader of a host and its followers keep and send, at the limits of both."""
import socket
import threading
import time
import types

import numpy as np
import pytest

from mxhybrid.base.errors import JobError
from mxhybrid.base.local_sockets import Connection
from mxhybrid.servers.aggregation import Follower, Leader, _Shared
from mxhybrid.servers.partitioning import Partitioning

WIDTH = 3


class Watched(_Shared):
    """Notes what a cache holds at the moment at which readers can see it."""

    def __init__(self):
        self.seen = []
        super().__init__(0)

    def __setattr__(self, name, value):
        if name == 'cache' and value is not None:
            rows = value.nbytes // (WIDTH * 4)
            self.seen.append(value.view(0, (rows, WIDTH), np.dtype('f4')).copy())
        super().__setattr__(name, value)


def arrive(leader, state, first, rows):
    """Have rows arrive for the slots from `first` on."""
    table = types.SimpleNamespace(partitioning=types.SimpleNamespace(width=WIDTH), dtype=np.dtype('f4'))
    arrival = types.SimpleNamespace(write=lambda result: result.__setitem__(slice(None), rows))
    leader._arrive(state, table, first, first + len(rows), arrival, [])


def test_readers_never_see_a_cache_without_the_rows_that_came_before():
    leader = Leader.__new__(Leader)
    leader._followers = {}
    state = Watched()
    early, late = np.full((4, WIDTH), 1, 'f4'), np.full((100000, WIDTH), 2, 'f4')
    arrive(leader, state, 0, early)
    arrive(leader, state, 4, late)
    assert len(state.seen) == 2
    np.testing.assert_array_equal(state.seen[1][:4], early)
    np.testing.assert_array_equal(state.cache.view(0, (100004, WIDTH), np.dtype('f4')), np.concatenate([early, late]))


def test_memory_for_a_whole_table_does_not_stay():
    leader = Leader.__new__(Leader)
    leader._followers = {}
    state = _Shared(0)
    for rows, stays in ((100, False), (100, True), (150, True), (100000, False), (150, True)):
        state.used = rows
        arrive(leader, state, 0, np.full((rows, WIDTH), 7, 'f4'))
        state.forget_rows()
        assert (state.cache.view(0, (rows, WIDTH), np.dtype('f4'))[-1, 0] == 7) == stays, rows


def test_two_threads_that_wait_for_the_leader_hear_what_the_other_received():
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    leader = Connection(there)
    follower = Follower(Connection(here), None, lambda: None)
    for _ in range(200):
        follower._unmerged.add(7)
        threads = [threading.Thread(target=follower._wait_until, args=[done], daemon=True) for done in (
            lambda: 7 not in follower._unmerged, lambda: (7, 0) in follower._arrived)]
        for thread in threads:
            thread.start()
        leader.send(['rows', 7, 0])
        threads[1].join(10)
        assert not threads[1].is_alive() and threads[0].is_alive()
        leader.send(['merged', 7])
        threads[0].join(10)
        assert not threads[0].is_alive()
        follower._arrived.clear()


class Servers:
    """In place of a client: the row with id i of table t holds 1000 t + i, whatever is pushed."""

    def push(self, table, parts, priority):
        """Nothing is kept."""

    def pull(self, table, offsets, priority):
        """What arrives is there at once."""
        values = (1000 * table.index + offsets).astype('f4')
        return types.SimpleNamespace(write=lambda result: result.__setitem__(slice(None), values[:, None]))


def related_tables(indices=(0, 1)):
    """Tables of which one shows the other's changes, as one worker sees them."""
    tables = [types.SimpleNamespace(index=index, pushes=0, dtype=np.dtype('f4'),
                                    partitioning=Partitioning(100, WIDTH, (index,), (0,))) for index in indices]
    for table in tables:
        table.family = tables
    return tables


def touch(link, table):
    """Push no rows."""
    table.pushes += 1
    link.push(table, np.empty(0, np.int64), np.empty((0, WIDTH), 'f4'), 0)


def test_a_merge_into_a_related_table_moves_no_rows_that_are_being_read():
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    failures = []
    leader = Leader(Servers(), {1: Connection(there)}, failures.append)
    follower = Follower(Connection(here), None, lambda: None)
    of_leader, of_follower = related_tables(), related_tables()
    for table in of_follower:
        touch(follower, table)
    touch(leader, of_leader[0])
    wanted = np.array([5, 6, 7])
    write = follower.request(of_follower[0], wanted, 0)
    time.sleep(0.3)  # for a leader that would answer without waiting for the other push
    touch(leader, of_leader[1])
    for ids, read in ((wanted + 10, leader.request(of_leader[0], wanted + 10, 0)), (wanted, write)):
        result = np.zeros((3, WIDTH), 'f4')
        read(result)
        np.testing.assert_array_equal(result, np.repeat(ids[:, None], WIDTH, axis=1))
    follower.close()
    leader.close()
    assert not failures


def test_a_follower_that_waits_elsewhere_keeps_no_leader_from_merging():
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    failures = []
    leader = Leader(Servers(), {1: Connection(there)}, failures.append)
    follower = Follower(Connection(here), None, lambda: None)
    for index in range(1000):  # more than a connection holds
        for link in (follower, leader):
            (table,) = related_tables([index])
            touch(link, table)
    settling = threading.Thread(target=leader.settle, daemon=True)
    settling.start()
    settling.join(30)
    assert not settling.is_alive() and not failures
    follower.settle()
    follower.close()
    leader.close()


def test_a_leader_without_descriptors_says_so(monkeypatch):
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    failures, told = [], threading.Event()
    connection = Connection(there)

    def lost(timeout=None):
        raise JobError('this process has too many open files')

    monkeypatch.setattr(connection, 'receive', lost)
    leader = Leader(Servers(), {1: connection}, lambda error: (failures.append(error), told.set()))
    follower = Follower(Connection(here), None, lambda: None)
    follower._send(['segment', 'push', 0, 8])
    assert told.wait(10) and 'too many open files' in str(failures[0])
    follower.close()
    leader.close()


MESSAGES = 2000  # more than fit into both directions of a connection


def test_a_leader_that_must_get_rid_of_its_messages_before_it_reads():
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    leader = Connection(there)
    follower = Follower(Connection(here), None, lambda: None)
    read = []

    def lead():
        for index in range(MESSAGES):
            leader.send(['merged', index])
        for _ in range(MESSAGES):
            read.append(leader.receive(10)[0])

    thread = threading.Thread(target=lead, daemon=True)
    thread.start()
    for index in range(MESSAGES):
        follower._send(['push', index])
    thread.join(10)
    assert read == [['push', index] for index in range(MESSAGES)]
    follower.close()
    leader.close()


def test_a_leader_that_has_left():
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    there.close()
    lost = []
    follower = Follower(Connection(here), None, lambda: lost.append(1))
    with pytest.raises(JobError, match='has left'):
        follower._send(['push', 0])
    assert lost == [1]
    follower.close()
