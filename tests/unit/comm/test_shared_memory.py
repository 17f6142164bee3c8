"""Shared memory and connections between the processes of a host."""
import gc
import os
import resource
import socket
import subprocess
import sys

import numpy as np
import pytest

from mxhybrid.base.errors import JobError
from mxhybrid.base.local_sockets import Connection, Listener, connect, place_of_host
from mxhybrid.comm.shared_memory import Segment


@pytest.fixture
def pair():
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connections = Connection(one), Connection(other)
    yield connections
    for connection in connections:
        connection.close()


def traces_of(inode):
    """Descriptors and mappings of this process that lead to a file."""
    open_files = [os.path.join('/proc/self/fd', name) for name in os.listdir('/proc/self/fd')]
    found = [path for path in open_files if os.path.exists(path) and os.stat(path).st_ino == inode]
    with open('/proc/self/maps') as maps:
        return found + [line for line in maps if line.split()[4] == str(inode)]


def test_what_one_side_writes_the_other_reads(pair):
    segment, descriptor = Segment.create(1000)
    pair[0].send(['segment', segment.nbytes], descriptor)
    os.close(descriptor)
    message, received = pair[1].receive()
    assert message == ['segment', segment.nbytes]
    other = Segment(received, message[1])
    segment.view(16, (3, 2), np.float32)[:] = [[1, 2], [3, 4], [5, 6]]
    np.testing.assert_array_equal(other.view(16, (3, 2), np.float32), [[1, 2], [3, 4], [5, 6]])
    other.view(16, (6,), np.float32)[5] = 7
    assert segment.view(16, (3, 2), np.float32)[2, 1] == 7


def test_a_view_keeps_the_memory_and_nothing_does_after_it():
    segment, descriptor = Segment.create(100)
    inode = os.fstat(descriptor).st_ino
    os.close(descriptor)
    view = segment.view(0, (10,), np.int64)
    view[:] = 5
    del segment
    gc.collect()
    assert list(view) == [5] * 10
    assert any('memfd' in trace for trace in traces_of(inode))
    del view
    gc.collect()
    assert traces_of(inode) == []


def test_an_empty_segment_has_room_for_no_rows():
    segment, descriptor = Segment.create(0)
    os.close(descriptor)
    assert segment.nbytes > 0
    assert segment.view(0, (0, 4), np.float32).shape == (0, 4)


def test_a_view_beyond_the_end_is_refused():
    segment, descriptor = Segment.create(1)
    os.close(descriptor)
    with pytest.raises(TypeError):
        segment.view(0, (segment.nbytes + 1,), np.uint8)


def test_messages_keep_their_bounds_and_order(pair):
    for number in range(50):
        pair[0].send(['push', number])
    assert [pair[1].receive()[0] for _ in range(50)] == [['push', number] for number in range(50)]


def test_a_descriptor_that_does_not_fit_is_an_error(pair):
    descriptor = os.open(os.devnull, os.O_RDONLY)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        pair[0].send(['segment', 100], descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir('/proc/self/fd'))) + 1, hard))
        taken = []
        with pytest.raises(OSError):
            while True:
                taken.append(os.dup(descriptor))
        with pytest.raises(JobError, match='ulimit -n'):
            pair[1].receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in taken + [descriptor]:
            os.close(each)


def test_nothing_comes(pair):
    with pytest.raises(socket.timeout):
        pair[0].receive(0.01)


def test_memory_that_is_given_back_reads_as_zeros():
    segment, descriptor = Segment.create(1 << 20)
    view = segment.view(0, (1 << 20,), np.uint8)
    view[:] = 1
    assert os.fstat(descriptor).st_blocks >= 2048
    segment.give_back()
    assert os.fstat(descriptor).st_blocks == 0
    assert not view.any()
    os.close(descriptor)


def test_the_end_of_the_other_side_is_an_error(pair):
    pair[0].close()
    with pytest.raises(JobError, match='left its local aggregation'):
        pair[1].receive()


def test_a_listener_connects_processes_of_this_user():
    listener = Listener()
    try:
        mine = connect(listener.name)
        theirs = listener.accept(5)
        mine.send(['hello', 3])
        assert theirs.receive() == (['hello', 3], None)
        mine.close()
        theirs.close()
    finally:
        listener.close()
    with pytest.raises(OSError):
        connect(listener.name)


def test_nobody_comes():
    listener = Listener()
    try:
        with pytest.raises(socket.timeout):
            listener.accept(0.05)
    finally:
        listener.close()


def test_a_host_has_one_place():
    other = [sys.executable, '-c', 'from mxhybrid.base.local_sockets import place_of_host; print(place_of_host())']
    assert subprocess.check_output(other, timeout=60).decode().strip() == place_of_host()
