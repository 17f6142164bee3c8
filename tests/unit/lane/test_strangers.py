"""What comes over a connection that is none of an agent: no crash, no answer, a sentence that says why."""
import re
import socket
import struct
import time

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mxhybrid.lane.transfers import PersistentTransfer

from .hosts import ASSIGN, Hosts, begin, lib

pytestmark = pytest.mark.both_pythons

PUSH, PULL, ROWS, BYE, PART, TOTAL, MOVE, TAKEN = range(1, 9)
#: The stream in which each kind of messages comes.
STREAMS = {PUSH: 3, PULL: 2, ROWS: 3, BYE: 3, PART: 1, TOTAL: 1, MOVE: 0, TAKEN: 0}
#: A sum of 50,000 float32 on both hosts, and where it is cut.
SUM, PIECE = 6, 25008


class Alone(Hosts):
    """Two hosts of one worker and one agent each, in which the connection between the agents leads here instead."""

    def join(self, one, other):
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(10)
        lib.checked(lib.agent_connect(self.agents[other], one, theirs.detach()))


def fragment(data, stream=None):
    stream = STREAMS.get(data[0], 3) if stream is None else stream
    return struct.pack('<I', stream << 28 | len(data)) + data


def message(kind, flags=0, table=0, part=0, count=0, version=0, ring=0, number=0, body=b''):
    return struct.pack('<BBHIIIIIQ', kind, flags, 0, table, part, count, version, ring, number) + body


@pytest.fixture
def job():
    """With a table of two partitions, one of them on each agent."""
    made = Alone([1, 1], [1, 1])
    made.table(0, 20, 2, [0, 1])
    made.rule(0, ASSIGN)
    made.allreduce(SUM, 'float32', 50000)
    made.link(room=1 << 12)
    yield made
    made.socket.close()
    made.close()


def refused(job, data):
    """Why agent 0 gave up."""
    job.socket.sendall(data)
    job.socket.shutdown(socket.SHUT_WR)
    deadline = time.monotonic() + 10
    while not job.failures and time.monotonic() < deadline:
        time.sleep(0.001)
    return ' '.join(job.failures)


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
    # More than a worker's requests and its agent ask of both partitions; and more than wait for other hosts' pushes.
    (fragment(message(PULL, version=1)) * 18, 'too many pulls'),
    (fragment(message(PUSH)) * 5, 'too many pushes'),
    (fragment(message(ROWS, part=1, count=3, number=5)), 'an unknown pull'),
    (fragment(message(PULL, count=2, body=struct.pack('<ii', 3, 3))), 'malformed local ids'),
    (fragment(message(PULL, count=1, body=struct.pack('<i', 10))), 'malformed local ids'),
    (fragment(message(PUSH, count=1, body=struct.pack('<iff', -1, 0, 0))), 'malformed local ids'),
    (fragment(message(TOTAL, flags=1, part=1, count=50000 - PIECE, number=SUM)), 'another size or type'),
    (fragment(message(TOTAL, flags=1, count=1, number=99)), 'a result of an unknown allreduce'),
    (fragment(message(PART, flags=1, part=1, count=50000 - PIECE, number=SUM)), 'another size or type'),
    (fragment(message(PART, flags=1, part=2, count=1, number=SUM)), 'another size or type'),
    (fragment(message(PART, flags=1, count=PIECE - 1, number=SUM)), 'another size or type'),
    (fragment(message(PART, flags=2, count=PIECE, number=SUM)), 'another size or type'),
    (fragment(message(PART, flags=9, count=1, number=SUM)), 'an unknown type'),
    (fragment(message(PART, flags=1, count=1 << 30, number=99)), 'too much data of allreduces'),
    (fragment(message(PART, flags=1, count=1, number=99, body=b'0000')) * 2, 'twice'),
    (fragment(message(PART, flags=1, number=99)), 'an empty chunk of an allreduce'),
    (fragment(message(PART, flags=1, count=1, number=99, body=b'0000')) +
     fragment(message(TOTAL, flags=1, count=1, number=99)), 'a result of an unknown allreduce'),
    (fragment(message(PUSH, count=2)) + fragment(message(PUSH, count=1), 1), 'the wrong stream'),
    (fragment(message(PULL, count=2)) + fragment(message(PULL, count=1), 0), 'the wrong stream'),
    (fragment(message(PART, flags=1, count=PIECE, number=SUM), 2), 'the wrong stream'),
    (fragment(message(MOVE, flags=8, table=0, part=1, count=1)), 'an unknown channel'),
    (fragment(message(MOVE, flags=8, table=1, part=1, count=1)), 'an unknown channel'),
    (fragment(message(MOVE, flags=8, table=1, part=7, count=1)), 'an unknown channel'),
    (fragment(message(MOVE, flags=7, table=1, count=1)), 'malformed ring'),
    (fragment(message(MOVE, flags=21, table=1, count=1)), 'malformed ring'),
    (fragment(message(MOVE, flags=8, table=1, ring=1 << 14, count=1)), 'malformed ring'),
    (fragment(message(MOVE, flags=13, table=1, count=1)), 'no room for another ring'),
    (fragment(message(MOVE, flags=8, table=1, count=0)), 'does not fit its ring'),
    (fragment(message(MOVE, flags=8, table=1, count=257)), 'does not fit its ring'),
    (fragment(message(MOVE, flags=8, table=1, count=1 << 31)), 'does not fit its ring'),
    (fragment(message(MOVE, flags=8, table=1, count=200, body=b'0' * 200)) * 2, 'does not fit its ring'),
    (fragment(message(MOVE, flags=8, table=1, count=8, body=b'0' * 8)) +
     fragment(message(MOVE, flags=9, table=1, count=8, body=b'0' * 8)), 'does not fit its ring'),
    (fragment(message(MOVE, flags=8, table=1, count=8, body=b'0' * 8)) +
     fragment(message(MOVE, flags=8, table=1, number=2, count=8, body=b'0' * 8)), 'in use'),
    (fragment(message(MOVE, flags=8, table=1, count=8, body=b'0' * 4)) +
     fragment(message(MOVE, flags=8, table=1, count=8), 2), 'the wrong stream'),
    (fragment(message(MOVE, flags=8, table=1, count=8, body=b'0' * 4)) +
     fragment(message(MOVE, flags=8, table=1, number=2, count=8), 2), 'the wrong stream'),
    (fragment(message(TAKEN, table=1, part=0, count=0)), 'an unknown channel'),
    (fragment(message(TAKEN, table=0, part=1, count=1)), 'a credit for more bytes'),
    (b'', 'is lost'),
], ids=lambda value: value if isinstance(value, str) else '')
def test_what_is_malformed_ends_the_agent_and_is_named(job, data, why):
    assert why in refused(job, data)
    assert 'server 1' in job.failures[0]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 4), st.binary(min_size=1, max_size=200)), max_size=8))
def test_noise_ends_the_agent_at_most(noise):
    made = Alone([1, 1], [1, 1])
    try:
        made.table(0, 20, 2, [0, 1])
        made.link(room=1 << 12)
        for priority, data in noise:
            made.socket.sendall(fragment(data, priority))
        made.socket.close()
    except OSError:  # it hung up
        pass
    finally:
        made.close()


def test_transfers_that_are_well_formed(job):
    """Bytes come for a ring that nobody reads yet, from both ends of it and around its end; what is given goes out."""
    give = transfer(job, 5, send=True)
    take = transfer(job, 6, send=False)
    for step in range(5):  # of 96 bytes each, in a ring of 256
        body = np.full(24, step, 'f4').tobytes()
        for part in (body[:50], body[50:]):
            job.socket.sendall(fragment(message(MOVE, flags=8, table=1, number=6, count=len(part), body=part)))
        target = np.zeros(24, 'f4')
        assert begin(take, None, target).there.wait(10) and (target == step).all()
    called = begin(give, np.arange(24, dtype='f4'), None)
    assert called.there.wait(10)
    wanted = message(MOVE, flags=8, part=1, number=5, count=96, body=np.arange(24, dtype='f4').tobytes())
    data, taken = b'', 0
    while wanted not in data or taken < 384:  # news of half a ring at a time
        data += job.socket.recv(1 << 16)
        taken = sum(struct.unpack('<I', count)[0] for count in re.findall(
            re.escape(struct.pack('<BBHII', TAKEN, 0, 0, 1, 0)) + b'(....)', data, re.DOTALL))
    assert taken <= 5 * 96
    job.socket.sendall(fragment(message(TAKEN, part=1, count=96)))
    for _ in range(3):
        job.socket.sendall(fragment(message(TAKEN, part=1, count=0)))
    job.socket.sendall(fragment(message(BYE)))
    assert job.failures == []


def transfer(job, tag, send):
    """A move of 24 float32 between worker 0 and worker 1, which is not there."""
    made = PersistentTransfer(job.workers[0][2], 0, tag, 'f4', (24,), (24,), False)
    (made.send if send else made.receive)(1, [slice(0, 24)])
    made.open()
    return made


def test_questions_are_answered(job):
    values = np.arange(20, dtype=np.float32).reshape(10, 2)
    ids = np.arange(0, 20, 2)
    # The push of the other host's worker comes from here; what this host's pushes there is read and forgotten.
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


class Late(Alone):
    """Whose agents work only when they are told to."""

    def start(self):
        pass


@pytest.mark.parametrize('order', [(7, 8, 9), (9, 7, 8), (8, 9, 7)])
def test_what_is_begun_first_is_sent_first(order):
    job = Late([1, 1], [1, 1])
    job.link(room=1 << 12)
    transfers = {tag: transfer(job, tag, True) for tag in (7, 8, 9)}
    for tag in order:
        assert begin(transfers[tag], np.full(24, tag, np.float32), None).there.wait(10)
    Alone.start(job)
    wanted = [struct.pack('<Q', tag) + np.full(24, tag, np.float32).tobytes() for tag in order]
    data = b''
    while not all(one in data for one in wanted):
        data += job.socket.recv(1 << 16)
    assert sorted(wanted, key=data.index) == wanted
    assert job.failures == []
    transfers.clear()
    job.socket.sendall(fragment(message(BYE)))
    job.socket.close()
    job.close()
