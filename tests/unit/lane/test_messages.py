"""Messages between hosts, of which the test plays one.

An agent receives well-formed messages in fragments of any sizes, of which one system call sends and receives several.
After other messages it ends with a reason, and neither crashes nor answers.
"""
import contextlib
import re
import socket
import struct

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mxhybrid.lane.transfers import PersistentTransfer

from .hosts import LIMIT_MS, Hosts, hosts, start, wait_until

pytestmark = pytest.mark.both_pythons

PUSH, PULL, ROWS, BYE, CONTRIBUTION, RESULT, RING_DATA, RING_CREDIT = range(1, 9)
#: The stream of each kind of message.
STREAMS = {PUSH: 4, PULL: 3, ROWS: 4, BYE: 4, CONTRIBUTION: 2, RESULT: 2, RING_DATA: 1, RING_CREDIT: 0}
#: The most bytes of a fragment; the bytes of the head of a fragment, and of the header of a message.
FRAGMENT, HEAD, HEADER = 1 << 16, 4, 32
#: An allreduce of two chunks: the first belongs to host 0, the second to host 1.
ALLREDUCE, CHUNK, FLOAT32 = 6, 48000, 1
ROWS_OF_TABLE, WIDTH = 6000, 8


class FakePeer(Hosts):
    """Two hosts of one worker and one agent each; `socket` is the test's end of the connection of agent 0.

    With sockets of kind SOCK_SEQPACKET a system call sends one record, and receives one record or a part of it.
    """

    def __init__(self, socket_kind=socket.SOCK_STREAM, **options):
        self._kind = socket_kind
        super().__init__([1, 1], [1, 1], **options)

    def join(self, first, second):
        self.socket, agent_end = socket.socketpair(socket.AF_UNIX, self._kind)
        for end in (self.socket, agent_end):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.socket.settimeout(LIMIT_MS / 1000)
        self.give(second, first, agent_end)

    def close(self):
        self.socket.close()
        super().close()


def fragment(data, stream=None):
    stream = STREAMS.get(data[0], 4) if stream is None else stream
    return struct.pack('<I', stream << 28 | len(data)) + data


def in_fragments(data, sizes=(), stream=2):
    """Cut bytes into fragments of the given sizes, and then into the largest ones."""
    sizes, fragments = list(sizes), []
    while data:
        size = sizes.pop(0) if sizes else FRAGMENT
        fragments.append(fragment(data[:size], stream))
        data = data[size:]
    return fragments


def message(kind, flags=0, table=0, part=0, count=0, version=0, ring=0, number=0, body=b''):
    return struct.pack('<BBHIIIIIQ', kind, flags, 0, table, part, count, version, ring, number) + body


def chunk(kind, part, values):
    """Return the message with a chunk of the allreduce."""
    return message(kind, flags=FLOAT32, part=part, count=CHUNK, number=ALLREDUCE, body=values.tobytes())


@pytest.fixture
def job():
    """Create two hosts with a table of two partitions, one on each agent."""
    with hosts(kind=FakePeer, may_fail=True) as job:
        job.table(0, 20, 2, [0, 1])
        job.allreduce(ALLREDUCE, 'float32', 2 * CHUNK)
        job.link(room=1 << 12)
        yield job


@pytest.mark.parametrize('data, why', [
    (fragment(message(9)), 'an unknown kind'),
    (struct.pack('<I', 7 << 28 | 5) + b'hello', 'malformed fragment'),
    (struct.pack('<I', 1 << 28 | 1 << 20), 'malformed fragment'),
    (fragment(message(PUSH, table=3)), 'no table has number 3'),
    (fragment(message(PUSH, part=2)), 'an unknown partition'),
    (fragment(message(PUSH, part=1)), 'a partition of another server'),
    (fragment(message(PUSH, count=11)), 'too many rows'),
    (fragment(message(PULL, count=1 << 31)), 'too many rows'),
    (fragment(message(PULL, part=1)), 'a partition of another server'),
    # More pushes than may wait for those of other hosts.
    (fragment(message(PUSH)) * 5, 'too many pushes'),
    (fragment(message(ROWS, part=1, count=3, number=5)), 'an unknown pull'),
    (fragment(message(PULL, count=2, body=struct.pack('<ii', 3, 3))), 'malformed local ids'),
    (fragment(message(PULL, count=1, body=struct.pack('<i', 10))), 'malformed local ids'),
    (fragment(message(PUSH, count=1, body=struct.pack('<iff', -1, 0, 0))), 'malformed local ids'),
    (fragment(message(RESULT, flags=1, part=1, count=CHUNK, number=ALLREDUCE)), 'another size or type'),
    (fragment(message(RESULT, flags=1, count=1, number=99)), 'a result of an unknown allreduce'),
    (fragment(message(CONTRIBUTION, flags=1, part=1, count=CHUNK, number=ALLREDUCE)), 'another size or type'),
    (fragment(message(CONTRIBUTION, flags=1, part=2, count=1, number=ALLREDUCE)), 'another size or type'),
    (fragment(message(CONTRIBUTION, flags=1, count=CHUNK - 1, number=ALLREDUCE)), 'another size or type'),
    (fragment(message(CONTRIBUTION, flags=2, count=CHUNK, number=ALLREDUCE)), 'another size or type'),
    (fragment(message(CONTRIBUTION, flags=9, count=1, number=ALLREDUCE)), 'an unknown type'),
    (fragment(message(CONTRIBUTION, flags=1, count=1 << 30, number=99)), 'too much data of allreduces'),
    (fragment(message(CONTRIBUTION, flags=1, count=1, number=99, body=b'0000')) * 2, 'twice'),
    (fragment(message(CONTRIBUTION, flags=1, number=99)), 'an empty chunk of an allreduce'),
    (fragment(message(CONTRIBUTION, flags=1, count=1, number=99, body=b'0000')) +
     fragment(message(RESULT, flags=1, count=1, number=99)), 'a result of an unknown allreduce'),
    (fragment(message(PUSH, count=2)) + fragment(message(PUSH, count=1), 1), 'the wrong stream'),
    (fragment(message(PULL, count=2)) + fragment(message(PULL, count=1), 0), 'the wrong stream'),
    (fragment(message(CONTRIBUTION, flags=1, count=CHUNK, number=ALLREDUCE), 3), 'the wrong stream'),
    (fragment(message(RING_CREDIT, table=0, part=1, count=1), 1), 'the wrong stream'),
    (fragment(message(RING_DATA, flags=8, table=0, part=1, count=1)), 'an unknown channel'),
    (fragment(message(RING_DATA, flags=8, table=1, part=1, count=1)), 'an unknown channel'),
    (fragment(message(RING_DATA, flags=8, table=1, part=7, count=1)), 'an unknown channel'),
    (fragment(message(RING_DATA, flags=7, table=1, count=1)), 'malformed ring'),
    (fragment(message(RING_DATA, flags=8, table=1, ring=1 << 14, count=1)), 'malformed ring'),
    (fragment(message(RING_DATA, flags=13, table=1, count=1)), 'no room for another ring'),
    (fragment(message(RING_DATA, flags=8, table=1, count=0)), 'does not fit its ring'),
    (fragment(message(RING_DATA, flags=8, table=1, count=257)), 'does not fit its ring'),
    (fragment(message(RING_DATA, flags=8, table=1, count=1 << 31)), 'does not fit its ring'),
    (fragment(message(RING_DATA, flags=8, table=1, count=8, body=b'0' * 8)) +
     fragment(message(RING_DATA, flags=9, table=1, count=8, body=b'0' * 8)), 'does not fit its ring'),
    (fragment(message(RING_DATA, flags=8, table=1, count=8, body=b'0' * 4)) +
     fragment(message(RING_DATA, flags=8, table=1, count=8), 2), 'the wrong stream'),
    (fragment(message(RING_DATA, flags=8, table=1, count=8, body=b'0' * 4)) +
     fragment(message(RING_DATA, flags=8, table=1, number=2, count=8), 2), 'the wrong stream'),
    (fragment(message(RING_CREDIT, table=1, part=0, count=0)), 'an unknown channel'),
    (fragment(message(RING_CREDIT, table=0, part=1, count=1)), 'a credit for more bytes'),
    (b'', 'is lost'),
], ids=lambda value: value if isinstance(value, str) else '')
def test_malformed_message_ends_the_agent_with_a_reason(job, data, why):
    """Further cases are in fuzz_messages.cc."""
    job.socket.sendall(data)
    job.socket.shutdown(socket.SHUT_WR)
    wait_until(lambda: job.failures)
    assert why in ' '.join(job.failures) and 'server 1' in job.failures[0]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 5), st.binary(min_size=1, max_size=200)), max_size=8))
def test_random_bytes_at_most_end_the_agent(noise):
    with hosts(kind=FakePeer, may_fail=True) as job:
        job.table(0, 20, 2, [0, 1])
        job.link(room=1 << 12)
        with contextlib.suppress(OSError):  # the agent has closed the connection
            for priority, data in noise:
                job.socket.sendall(fragment(data, priority))


def test_well_formed_transfers(job):
    """Data arrives in a ring before its reader, across the end of the ring; data that is written is sent."""
    sending = transfer(job, 5, send=True)
    receiving = transfer(job, 6, send=False)
    for step in range(5):  # 96 bytes each, in a ring of 256
        body = np.full(24, step, 'f4').tobytes()
        for part in (body[:50], body[50:]):
            job.socket.sendall(fragment(message(RING_DATA, flags=8, table=1, number=6, count=len(part), body=part)))
        target = np.zeros(24, 'f4')
        start(receiving, None, target).wait()
        assert (target == step).all()
    start(sending, np.arange(24, dtype='f4'), None).wait()
    expected = message(RING_DATA, flags=8, part=1, number=5, count=96, body=np.arange(24, dtype='f4').tobytes())
    data, credit = b'', 0
    while expected not in data or credit < 384:  # credits of half a ring at a time
        data += job.socket.recv(1 << 16)
        credit = sum(struct.unpack('<I', count)[0] for count in re.findall(
            re.escape(struct.pack('<BBHII', RING_CREDIT, 0, 0, 1, 0)) + b'(....)', data, re.DOTALL))
    assert credit <= 5 * 96
    job.socket.sendall(fragment(message(RING_CREDIT, part=1, count=96)))
    for _ in range(3):
        job.socket.sendall(fragment(message(RING_CREDIT, part=1, count=0)))
    job.socket.sendall(fragment(message(BYE)))
    assert job.failures == []


def transfer(job, tag, send):
    """Describe a transfer of 24 float32 between worker 0 and worker 1, which the test plays."""
    described = PersistentTransfer(job.workers[0][2], 0, tag, 'f4', (24,), (24,), False)
    (described.send if send else described.receive)(1, [slice(0, 24)])
    described.open()
    return described


def test_pulls_are_answered(job):
    values = np.arange(20, dtype=np.float32).reshape(10, 2)
    ids = np.arange(0, 20, 2)
    # The test pushes for the other host's worker; it reads and ignores the pushes of this host.
    local_ids = struct.pack('<10i', *range(10))
    job.socket.sendall(fragment(message(PUSH, count=10, body=local_ids + values.tobytes())))
    assert job.push(0, 0, ids, values)
    job.socket.sendall(fragment(message(PULL, count=2, version=1, number=8, body=struct.pack('<2i', 3, 7))))
    data = b''
    answer = message(ROWS, count=2, number=8, body=(2 * values[[3, 7]]).tobytes())
    while answer not in data:
        data += job.socket.recv(1 << 16)
    job.socket.sendall(fragment(message(BYE)))
    assert job.failures == []


@pytest.mark.parametrize('order', [(7, 8, 9), (9, 7, 8), (8, 9, 7)])
def test_transfers_are_sent_in_the_order_of_their_starts(order):
    with hosts(kind=FakePeer, started=False) as job:
        job.link(room=1 << 12)
        transfers = {tag: transfer(job, tag, True) for tag in (7, 8, 9)}
        for tag in order:
            start(transfers[tag], np.full(24, tag, np.float32), None).wait()
        job.start()
        expected = [struct.pack('<Q', tag) + np.full(24, tag, np.float32).tobytes() for tag in order]
        data = b''
        while not all(part in data for part in expected):
            data += job.socket.recv(1 << 16)
        assert sorted(expected, key=data.index) == expected
        transfers.clear()
        job.socket.sendall(fragment(message(BYE)))


def some_values(seed, count=CHUNK):
    return np.random.RandomState(seed).standard_normal(count).astype(np.float32)


def test_one_call_sends_and_receives_several_fragments():
    with hosts(kind=FakePeer, socket_kind=socket.SOCK_SEQPACKET) as job:
        buffer = job.allreduce(ALLREDUCE, 'float32', 2 * CHUNK)[0]
        inputs, other, result = some_values(0, 2 * CHUNK), some_values(1), some_values(2)
        buffer.input[:] = inputs
        buffer.start()
        assert job.socket.recv(1 << 20) == b''.join(in_fragments(chunk(CONTRIBUTION, 1, inputs[CHUNK:])))
        for data in (chunk(CONTRIBUTION, 0, other), chunk(RESULT, 1, result)):
            record = b''.join(in_fragments(data))
            job.socket.send(record[:HEAD + HEADER])
            job.socket.send(record[HEAD + HEADER:])
        buffer.wait()
        np.testing.assert_array_equal(buffer.output, np.concatenate([inputs[:CHUNK] + other, result]))
        sent = in_fragments(chunk(RESULT, 0, buffer.output[:CHUNK]))
        assert job.socket.recv(1 << 20) == b''.join(sent)


@settings(max_examples=12)
@given(st.data())
def test_fragments_of_any_sizes_and_streams_are_received(data):
    """Fragments of other streams come between those of a large message, at the places where its next bytes belong."""
    sizes = st.lists(st.sampled_from([1, 31, 33, 5000, 9000, 40000, FRAGMENT - 1, FRAGMENT, FRAGMENT]), max_size=8)
    with hosts(kind=FakePeer) as job:
        job.table(0, ROWS_OF_TABLE, WIDTH, [0])
        buffer = job.allreduce(ALLREDUCE, 'float32', 2 * CHUNK)[0]
        inputs, other, result = some_values(0, 2 * CHUNK), some_values(1), some_values(2)
        rows = some_values(3, ROWS_OF_TABLE * WIDTH).reshape(-1, WIDTH)
        buffer.input[:] = inputs
        buffer.start()
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
        assert job.push(0, 0, [], [])
        np.testing.assert_array_equal(job.pull(0, 0, np.arange(ROWS_OF_TABLE)), rows)
        buffer.wait()
        np.testing.assert_array_equal(buffer.output, np.concatenate([inputs[:CHUNK] + other, result]))
