"""Closing an agent: it ends in time, or logs the reason why it waits and is left as it is."""
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from mxhybrid.lane import agent as lane_agent
from mxhybrid.lane.agent import Agent, Shape
from mxhybrid.lane.membership import Endpoint, Membership
from mxhybrid.lane.worker import Lane
from mxhybrid.messaging.handshake import connect_peers
from mxhybrid.messaging.local_sockets import connect, memory_domain

pytestmark = pytest.mark.both_pythons

SECRET = 'secret'
#: The time limit of a close, and the most that a close may take.
TIMEOUT_S, MOST_S = 0.3, 20


class Table:
    index, name, dtype, lag = 0, 'table', np.dtype('float32'), 0


@contextmanager
def agent_and_worker(update=lambda *_: None):
    """Create an agent, a worker of its host, and `other`, the end of the connection that another agent would have."""
    failures = []
    agent = Agent('127.0.0.1', SECRET, update, failures.append)
    with socket.create_server(('127.0.0.1', 0)) as listener, ThreadPoolExecutor(1) as thread:
        endpoints = [agent.endpoint, Endpoint('elsewhere', *listener.getsockname()[:2], '')]
        membership = Membership(endpoints, [memory_domain()])
        addresses = [(endpoint.address, endpoint.port) for endpoint in endpoints]
        connecting = thread.submit(connect_peers, 1, addresses, [0], listener, SECRET, 10, lane_agent.PURPOSE)
        agent.connect(membership, 10)
        other = connecting.result()[0]
    with other, closing(Lane(membership, 0)) as lane:
        yield SimpleNamespace(agent=agent, membership=membership, lane=lane, other=other)
    assert failures == []


def add_table(pair, rows, width, owner):
    shape = Shape(rows, width, 'float32', 0, [owner])
    pair.agent.add_table(0, shape)
    pair.lane.open(Table, 0, shape)


def close(pair, caplog):
    """Close the agent within the time limit; return its log messages."""
    start = time.monotonic()
    pair.agent.close(timeout=TIMEOUT_S)
    assert time.monotonic() - start < MOST_S
    return ' '.join(record.getMessage() for record in caplog.records if record.name == 'mxhybrid.lane.agent')


def test_agent_that_ends_logs_nothing(caplog):
    with agent_and_worker() as pair:
        assert close(pair, caplog) == ''
        pair.other.settimeout(10)
        assert pair.other.recv(1 << 16)[4] == 4  # the message kBye
        pair.agent.close()  # has no effect


def test_optimizer_that_does_not_end_is_named(caplog):
    begun, go_on = threading.Event(), threading.Event()

    def update(*_):
        begun.set()
        go_on.wait()
    with agent_and_worker(update=update) as pair:
        add_table(pair, 10, 2, 0)
        pair.agent.set_rule(0, 0, 'callback')
        pair.lane.push(Table, np.arange(10), np.ones((10, 2)), 0)
        assert begun.wait(10)
        log = close(pair, caplog)
        go_on.set()
    assert 'server 0' in log and 'the optimizer, which updates partition 0 of table 0' in log


def test_host_that_receives_nothing_is_named(caplog):
    rows, width = 100000, 100
    with agent_and_worker() as pair:
        add_table(pair, rows, width, 1)
        pair.lane.push(Table, np.arange(rows), np.ones((rows, width)), 0)
        log = close(pair, caplog)
    assert 'waits for server 1 to receive the last' in log


def test_worker_that_receives_no_answer_is_named(caplog):
    with agent_and_worker() as pair:
        worker, memory = connect(pair.membership.agents[0].listener), os.memfd_create('values')
        os.ftruncate(memory, 1 << 16)
        worker._sock.settimeout(3)  # longer than a busy machine keeps the agent from reading
        with pytest.raises(OSError):  # the worker reads no answers, so the buffers of both sides become full
            for number in range(100000):
                worker.send(['allreduce', number, 0, 1, 10, 0, False], memory)
        os.close(memory)
        log = close(pair, caplog)
        worker.close()
    assert "an answer to 'allreduce' of a worker of this host" in log
