"""An agent ends, or says what it waits for and is left: whoever closes it goes on."""
import os
import socket
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from mxhybrid.base.local_sockets import connect, memory_domain
from mxhybrid.base.peers import connect_peers
from mxhybrid.lane import agent as lane_agent
from mxhybrid.lane.agent import Agent
from mxhybrid.lane.membership import Endpoint, Membership
from mxhybrid.lane.worker import Lane

pytestmark = pytest.mark.both_pythons

SECRET = 'secret'
#: Of a close, and of one that does not wait for what it cannot have.
TIMEOUT_S, SOON_S = 0.3, 5


class Table:
    index, name, dtype, halves = 0, 'table', np.dtype('float32'), False


class One:
    """An agent, a worker of its host, and an agent of another host, whose end of the connection is `other`."""

    def __init__(self, update=lambda *_: None):
        self.failures = []
        self.agent = Agent('127.0.0.1', SECRET, update, self.failures.append)
        with socket.create_server(('127.0.0.1', 0)) as door:
            other = Endpoint('elsewhere', *door.getsockname()[:2], '')
            self.membership = Membership([self.agent.endpoint, other], [memory_domain()])
            meeting = threading.Thread(target=self._meet, args=(door,))
            meeting.start()
            self.agent.connect(self.membership, 10)
            meeting.join()
        self.lane = Lane(self.membership, 0)

    def _meet(self, door):
        addresses = [(endpoint.address, endpoint.port) for endpoint in self.membership.agents]
        self.other = connect_peers(1, addresses, [0], door, SECRET, 10, lane_agent.PURPOSE)[0]

    def table(self, rows, width, owner):
        self.agent.add_table(0, (rows, width, 'float32', False, [owner]))
        self.lane.open(Table, 0, (rows, width, 'float32', False, [owner]))


@contextmanager
def one(**arguments):
    made = One(**arguments)
    yield made
    made.lane.close()
    made.other.close()
    assert made.failures == []


def closed(made, caplog):
    """What is said when the agent is closed, which takes no longer than it may."""
    began = time.monotonic()
    made.agent.close(timeout=TIMEOUT_S)
    assert time.monotonic() - began < SOON_S
    return ' '.join(record.getMessage() for record in caplog.records if record.name == 'mxhybrid.lane.agent')


def test_an_agent_that_ends_says_nothing(caplog):
    with one() as made:
        assert closed(made, caplog) == ''
        made.other.settimeout(10)
        assert made.other.recv(1 << 16)[4] == 4  # a message that says that it ends
        made.agent.close()  # has no effect


@pytest.mark.timeout(60)
def test_an_optimizer_that_does_not_end_is_named(caplog):
    begun, go_on = threading.Event(), threading.Event()

    def update(*_):
        begun.set()
        go_on.wait()
    with one(update=update) as made:
        made.table(10, 2, 0)
        made.agent.set_rule(0, 0, 'callback')
        made.lane.push(Table, np.arange(10), np.ones((10, 2)), 0)
        assert begun.wait(10)
        said = closed(made, caplog)
        go_on.set()
    assert 'server 0' in said and 'the optimizer, which updates partition 0 of table 0' in said


@pytest.mark.timeout(60)
def test_a_host_that_takes_nothing_is_named(caplog):
    rows, width = 100000, 100
    with one() as made:
        made.table(rows, width, 1)
        made.lane.push(Table, np.arange(rows), np.ones((rows, width)), 0)
        said = closed(made, caplog)
    assert 'waits for server 1 to receive the last' in said


@pytest.mark.timeout(60)
def test_a_worker_that_takes_no_answer_is_named(caplog):
    with one() as made:
        worker, memory = connect(made.membership.agents[0].listener), os.memfd_create('values')
        os.ftruncate(memory, 1 << 16)
        worker._sock.settimeout(1)
        with pytest.raises(OSError):  # nobody reads: neither side has room any more
            for number in range(100000):
                worker.send(['allreduce', number, 0, 1, 10], memory)
        os.close(memory)
        said = closed(made, caplog)
        worker.close()
    assert "an answer to 'allreduce' of a worker of this host" in said
