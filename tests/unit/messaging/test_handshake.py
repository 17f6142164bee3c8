"""Connections between processes of a job: strangers are turned away, and do not delay the others."""
import contextlib
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from mxhybrid.base.errors import JobError
from mxhybrid.messaging import handshake
from mxhybrid.messaging.sealed import prove

pytestmark = pytest.mark.both_pythons

SECRET, PURPOSE = 'open sesame', 'a test'
#: The peers of each of three processes on different hosts.
OTHERS = [[1, 2], [0, 2], [0, 1]]


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def doors(stack):
    """Return the listening sockets of three processes."""
    return [stack.enter_context(socket.create_server(('127.0.0.1', 0))) for _ in range(3)]


@pytest.fixture
def meet(stack, doors):
    """Return a function that connects each process with those of other hosts and returns the outcomes: connections by
    number, or an error.
    """
    addresses = [door.getsockname() for door in doors]

    def connect(number, hosts, secret, timeout):
        peers = [other for other in range(len(hosts)) if hosts[other] != hosts[number]]
        try:
            connections = handshake.connect_peers(number, addresses, peers, doors[number], secret, timeout, PURPOSE)
        except JobError as error:
            return error
        for connection in connections.values():
            stack.enter_context(connection)
        return connections

    def connect_all(hosts='abc', secrets=(SECRET,) * 3, timeout=10):
        with ThreadPoolExecutor(len(doors)) as threads:
            return list(threads.map(lambda number: connect(number, hosts, secrets[number], timeout), range(len(doors))))
    return connect_all


def test_processes_of_different_hosts_connect_and_lose_no_byte(meet):
    connections = meet()
    assert [sorted(sockets) for sockets in connections] == OTHERS
    connections[0][2].sendall(b'from 0')
    assert connections[2][0].recv(100) == b'from 0'


def test_processes_of_one_host_do_not_connect(meet):
    assert [sorted(sockets) for sockets in meet('aab')] == [[2], [2], [0, 1]]


@pytest.mark.parametrize('says', [
    b'', b'\n', b'hello\n', b'[]\n', b'{}\n', b'9' * 5000, b'\xff\xfe\n',
    json.dumps({'number': 1, 'proof': 'x', 'challenge': 'y'}).encode() + b'\n',
    json.dumps({'number': '1', 'proof': 'x', 'challenge': 'y'}).encode() + b'\n',
    json.dumps({'number': 1, 'proof': prove(SECRET, 'another', PURPOSE, 1), 'challenge': 'y'}).encode() + b'\n',
], ids=repr)
def test_strangers_are_turned_away_without_delay(doors, meet, says):
    with socket.create_connection(doors[0].getsockname()) as stranger:
        stranger.sendall(says)
        if not says:
            stranger.close()
        assert [sorted(sockets) for sockets in meet()] == OTHERS


def test_a_silent_connection_delays_the_others_only_briefly(doors, meet, monkeypatch):
    monkeypatch.setattr(handshake, '_LINE_S', 1)  # longer than a busy machine delays the other processes
    with socket.create_connection(doors[0].getsockname()):
        assert [sorted(sockets) for sockets in meet()] == OTHERS


def test_a_process_with_another_secret_is_refused(meet):
    errors = meet(secrets=(SECRET, SECRET, 'another'), timeout=1)
    assert all(isinstance(error, JobError) for error in errors)
    assert 'raise MXHYBRID_TIMEOUT' in str(errors[0])


def test_a_stranger_at_the_address_is_refused(doors):
    """The stranger knows the messages of a process, but not the secret."""
    def pretend():
        sock, _ = doors[0].accept()
        with sock:
            sock.sendall(b'{"challenge": "0"}\n')
            sock.recv(1000)
            sock.sendall(b'{"proof": "0"}\n')
    with ThreadPoolExecutor() as threads:
        stranger = threads.submit(pretend)
        with pytest.raises(JobError, match='the proof is wrong'):
            handshake.connect_peers(1, [door.getsockname() for door in doors[:2]], [0], doors[1], SECRET, 5, PURPOSE)
        stranger.result(10)


@pytest.mark.parametrize('silent_strangers, timeout', [(0, 0.2), (60, 1)])
def test_a_peer_that_does_not_connect_is_named(stack, doors, monkeypatch, silent_strangers, timeout):
    monkeypatch.setattr(handshake, '_LINE_S', 0.4)
    addresses = [door.getsockname() for door in doors[:2]]
    for _ in range(silent_strangers):
        stack.enter_context(socket.create_connection(addresses[0]))
    message, begin = 'for a test between 127.0.0.1 and 127.0.0.1 within %g s' % timeout, time.monotonic()
    with pytest.raises(JobError, match=message):
        handshake.connect_peers(0, addresses, [1], doors[0], SECRET, timeout, PURPOSE)
    assert time.monotonic() - begin < 15
