"""Connections between processes of a job: strangers are turned away, and do not delay the others."""
import json
import socket
import threading

import pytest

from mxhybrid.base.errors import JobError
from mxhybrid.messaging import handshake
from mxhybrid.messaging.sealed import prove

pytestmark = pytest.mark.both_pythons

SECRET, PURPOSE = 'open sesame', 'a test'


@pytest.fixture
def doors():
    """The listening sockets of three processes."""
    made = [socket.create_server(('127.0.0.1', 0)) for _ in range(3)]
    yield made
    for door in made:
        door.close()


def wanted_by(number, hosts):
    return [other for other in range(len(hosts)) if hosts[other] != hosts[number]]


def meet(doors, hosts='abc', secrets=(SECRET,) * 3, timeout=10):
    """Connect each process with those of other hosts, and return the connections of each, or its error."""
    outcomes = [None] * len(doors)
    addresses = [door.getsockname()[:2] for door in doors]

    def run(number):
        try:
            outcomes[number] = handshake.connect_peers(number, addresses, wanted_by(number, hosts), doors[number],
                                                   secrets[number], timeout, PURPOSE)
        except JobError as error:
            outcomes[number] = error
    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(doors))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def closed(connections):
    for sockets in connections:
        if isinstance(sockets, dict):
            for sock in sockets.values():
                sock.close()


def test_processes_of_different_hosts_connect_and_lose_no_byte(doors):
    found = meet(doors)
    assert [sorted(sockets) for sockets in found] == [[1, 2], [0, 2], [0, 1]]
    found[0][2].sendall(b'from 0')
    assert found[2][0].recv(100) == b'from 0'
    closed(found)


def test_processes_of_one_host_do_not_connect(doors):
    found = meet(doors, 'aab')
    assert [sorted(sockets) for sockets in found] == [[2], [2], [0, 1]]
    closed(found)


@pytest.mark.parametrize('says', [
    b'', b'\n', b'hello\n', b'[]\n', b'{}\n', b'9' * 5000, b'\xff\xfe\n',
    json.dumps({'number': 1, 'proof': 'x', 'challenge': 'y'}).encode() + b'\n',
    json.dumps({'number': '1', 'proof': 'x', 'challenge': 'y'}).encode() + b'\n',
    json.dumps({'number': 1, 'proof': prove(SECRET, 'another', PURPOSE, 1), 'challenge': 'y'}).encode() + b'\n',
], ids=repr)
def test_strangers_are_turned_away_without_delay(doors, says):
    stranger = socket.create_connection(doors[0].getsockname())
    stranger.sendall(says)
    if not says:
        stranger.close()
    found = meet(doors)
    assert [sorted(sockets) for sockets in found] == [[1, 2], [0, 2], [0, 1]]
    closed(found)
    stranger.close()


def test_a_silent_connection_delays_the_others_only_briefly(doors, monkeypatch):
    monkeypatch.setattr(handshake, '_LINE_S', 1)  # longer than a busy machine delays the other processes
    stranger = socket.create_connection(doors[0].getsockname())
    found = meet(doors)
    assert [sorted(sockets) for sockets in found] == [[1, 2], [0, 2], [0, 1]]
    closed(found)
    stranger.close()


def test_a_process_with_another_secret_is_refused(doors):
    found = meet(doors, 'abc', (SECRET, SECRET, 'another'), timeout=1)
    assert all(isinstance(one, JobError) for one in found)
    assert 'raise MXHYBRID_TIMEOUT' in str(found[0])


def test_a_stranger_at_the_address_is_refused(doors):
    """The stranger knows the messages of a process, but not the secret."""
    def pretend():
        sock, _ = doors[0].accept()
        with sock:
            sock.sendall(b'{"challenge": "0"}\n')
            sock.recv(1000)
            sock.sendall(b'{"proof": "0"}\n')
    thread = threading.Thread(target=pretend)
    thread.start()
    with pytest.raises(JobError, match='the proof is wrong'):
        handshake.connect_peers(1, [door.getsockname()[:2] for door in doors[:2]], [0], doors[1], SECRET, 5, PURPOSE)
    thread.join()


def test_peer_that_does_not_connect_is_named(doors):
    with pytest.raises(JobError, match='127.0.0.1 and 127.0.0.1 within 0.2 s'):
        handshake.connect_peers(0, [door.getsockname()[:2] for door in doors[:2]], [1], doors[0], SECRET, 0.2, PURPOSE)


def test_silent_strangers_do_not_extend_the_deadline(doors, monkeypatch):
    """Process 0 waits for process 1, which does not connect."""
    monkeypatch.setattr(handshake, '_LINE_S', 0.4)
    addresses = [door.getsockname()[:2] for door in doors]
    errors, strangers = [], [socket.create_connection(addresses[0]) for _ in range(60)]

    def wait():
        with pytest.raises(JobError) as caught:
            handshake.connect_peers(0, addresses, [1], doors[0], SECRET, 1, PURPOSE)
        errors.append(str(caught.value))
    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(15)
    for stranger in strangers:
        stranger.close()
    assert errors and 'no connection for a test' in errors[0]
