"""Messages between hosts are cut into fragments, of which one system call sends and receives several."""
import contextlib
import socket

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from .hosts import ASSIGN, LIMIT_MS, Hosts, lib
from .test_strangers import CONTRIBUTION, PULL, PUSH, RESULT, fragment, message

pytestmark = pytest.mark.both_pythons

#: The most bytes of a fragment; the bytes of the head of a fragment, and of the header of a message.
FRAGMENT, HEAD, HEADER = 1 << 16, 4, 32
#: An allreduce of two chunks: the first belongs to host 0, the second to host 1.
ALLREDUCE, CHUNK, FLOAT32 = 6, 48000, 1
ROWS_OF_TABLE, WIDTH = 6000, 8


class RecordedPeer(Hosts):
    """Two hosts of one worker and one agent; `socket` is the test's end of the connection of agent 0.

    With sockets of `kind` SOCK_SEQPACKET a system call sends one record, and receives one record or a part of it.
    """

    def __init__(self, kind):
        self._kind = kind
        super().__init__([1, 1], [1, 1])
        self.sum = self.allreduce(ALLREDUCE, 'float32', 2 * CHUNK)[0]

    def join(self, first, second):
        self.socket, agent_end = socket.socketpair(socket.AF_UNIX, self._kind)
        for end in (self.socket, agent_end):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.socket.settimeout(LIMIT_MS / 1000)
        lib.agent_connect(self.agents[second], first, agent_end.detach())


@contextlib.contextmanager
def peer(kind=socket.SOCK_STREAM):
    job = RecordedPeer(kind)
    try:
        yield job
        assert job.failures == []
    finally:
        job.socket.close()
        job.close()


def chunk(kind, part, values):
    """Return the message with a chunk of the allreduce."""
    return message(kind, flags=FLOAT32, part=part, count=CHUNK, number=ALLREDUCE, body=values.tobytes())


def in_fragments(data, sizes=(), stream=2):
    """Cut bytes into fragments of the given sizes, and then into the largest ones."""
    sizes, fragments = list(sizes), []
    while data:
        size = sizes.pop(0) if sizes else FRAGMENT
        fragments.append(fragment(data[:size], stream))
        data = data[size:]
    return fragments


def some_values(seed, count=CHUNK):
    return np.random.RandomState(seed).standard_normal(count).astype(np.float32)


def test_one_call_sends_and_receives_several_fragments():
    with peer(socket.SOCK_SEQPACKET) as job:
        inputs, other, result = some_values(0, 2 * CHUNK), some_values(1), some_values(2)
        job.sum.input[:] = inputs
        job.sum.start()
        assert job.socket.recv(1 << 20) == b''.join(in_fragments(chunk(CONTRIBUTION, 1, inputs[CHUNK:])))
        for data in (chunk(CONTRIBUTION, 0, other), chunk(RESULT, 1, result)):
            record = b''.join(in_fragments(data))
            job.socket.send(record[:HEAD + HEADER])
            job.socket.send(record[HEAD + HEADER:])
        assert job.sum.done.wait(LIMIT_MS / 1000)
        np.testing.assert_array_equal(job.sum.output, np.concatenate([inputs[:CHUNK] + other, result]))
        sent = in_fragments(chunk(RESULT, 0, job.sum.output[:CHUNK]))
        assert job.socket.recv(1 << 20) == b''.join(sent)


@settings(deadline=None, max_examples=12)
@given(st.data())
def test_fragments_of_any_sizes_and_streams_are_received(data):
    """Fragments of other streams come between those of a large message, at the places where its next bytes belong."""
    sizes = st.lists(st.sampled_from([1, 31, 33, 5000, 9000, 40000, FRAGMENT - 1, FRAGMENT, FRAGMENT]), max_size=8)
    with peer() as job:
        job.table(0, ROWS_OF_TABLE, WIDTH, [0])
        job.rule(0, ASSIGN)
        inputs, other, result = some_values(0, 2 * CHUNK), some_values(1), some_values(2)
        rows = some_values(3, ROWS_OF_TABLE * WIDTH).reshape(-1, WIDTH)
        job.sum.input[:] = inputs
        job.sum.start()
        received = b''
        expected_size = sum(map(len, in_fragments(chunk(CONTRIBUTION, 1, inputs[CHUNK:]))))
        while len(received) < expected_size:
            received += job.socket.recv(1 << 20)
        ids = np.arange(ROWS_OF_TABLE, dtype=np.int32).tobytes()
        streams = [
            in_fragments(chunk(CONTRIBUTION, 0, other) + chunk(RESULT, 1, result), data.draw(sizes), 2),
            in_fragments(message(PUSH, count=ROWS_OF_TABLE, body=ids + rows.tobytes()), data.draw(sizes), 4),
            in_fragments(message(PULL, version=1, count=ROWS_OF_TABLE, number=7, body=ids), data.draw(sizes), 3)]
        order = data.draw(st.permutations([0] * 12 + [1] * 6 + [2] * 2))
        merged = []
        for stream in order + [0, 1, 2] * max(map(len, streams)):
            if streams[stream]:
                merged.append(streams[stream].pop(0))
        data_sent, portion = b''.join(merged), data.draw(st.sampled_from([9000, FRAGMENT, 300000]))
        for start in range(0, len(data_sent), portion):
            job.socket.sendall(data_sent[start:start + portion])
        assert job.push(0, 0, [], np.zeros((0, WIDTH)))
        np.testing.assert_array_equal(job.pull(0, 0, np.arange(ROWS_OF_TABLE)), rows)
        assert job.sum.done.wait(LIMIT_MS / 1000)
        np.testing.assert_array_equal(job.sum.output, np.concatenate([inputs[:CHUNK] + other, result]))
