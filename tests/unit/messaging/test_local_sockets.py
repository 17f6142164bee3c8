"""Messages between processes of a host, and the errors of the other operations once a process has gone."""
import contextlib
import os
import socket
import threading
import time

import pytest

from mxhybrid.base.errors import JobError
from mxhybrid.messaging import local_sockets
from mxhybrid.messaging.local_sockets import Left, Listener, connect, differ_in_user, memory_domain, user_of_domain

pytestmark = pytest.mark.both_pythons


@pytest.fixture
def listener():
    with contextlib.closing(Listener()) as listener:
        yield listener


@pytest.fixture
def ends(listener):
    """Return both ends of a connection."""
    with contextlib.closing(connect(listener.name)) as mine, contextlib.closing(listener.accept(1)) as theirs:
        yield mine, theirs


def test_a_process_that_left_raises_one_error_everywhere(listener, ends):
    mine, theirs = ends
    theirs.send(['here'])
    assert mine.receive(1) == (['here'], None)
    assert mine.peer == theirs.peer == os.getpid()
    theirs.close()
    with pytest.raises(Left):
        mine.receive(1)
    with pytest.raises(Left, match='a process of this host has closed its connection'):
        mine.send(['there?'])
    mine.tell(['there?'])
    listener.close()
    with pytest.raises(Left):
        connect(listener.name)


def test_a_message_that_is_too_long_is_not_sent(ends):
    mine, theirs = ends
    with pytest.raises(JobError, match=r'has 65540 bytes, but at most 65536 can be sent: \["ranges", "aaaa'):
        mine.send(['ranges', 'a' * 65526])
    longest = ['ranges', 'a' * 65522]
    mine.send(longest)
    assert theirs.receive(1) == (longest, None)
    mine._sock.send(b'1' * 65537)
    with pytest.raises(JobError, match='more than 65536 bytes'):
        theirs.receive(1)


def test_another_user_cannot_delay_the_deadline(listener, monkeypatch):
    ended = threading.Event()

    def call():
        while not ended.is_set():
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                sock.settimeout(0.1)
                try:
                    sock.connect(b'\0' + listener.name.encode())
                except OSError:
                    continue
    caller = threading.Thread(target=call)
    monkeypatch.setattr(local_sockets, '_own_peer', lambda sock: False)
    caller.start()
    try:
        begin = time.monotonic()
        with pytest.raises(socket.timeout, match='no process of this user connected within 0.5 s'):
            listener.accept(0.5)
        assert time.monotonic() - begin < 20
    finally:
        ended.set()
        caller.join()


def test_one_process_is_accepted_at_a_time(listener):
    assert listener.accept_one() is None
    ends = [connect(listener.name) for _ in range(2)]
    taken = [listener.accept_one() for _ in range(2)]
    assert listener.accept_one() is None
    for mine, theirs in zip(ends, taken):
        theirs.send(['here'])
        assert mine.receive(1) == (['here'], None)
    for connection in ends + taken:
        connection.close()


def test_waiting_for_a_listener_has_a_limit(listener, monkeypatch):
    monkeypatch.setattr(local_sockets, '_CONNECT_S', 1)
    waiting = []
    with pytest.raises(JobError, match='accepted no connection within 1 s'):
        while len(waiting) < 1000:  # more than its queue takes
            waiting.append(connect(listener.name))
    for connection in waiting:
        connection.close()


def test_processes_of_two_users_share_no_memory(monkeypatch):
    mine = memory_domain()
    assert memory_domain() == mine and user_of_domain(mine) == str(os.getuid()) and not differ_in_user(mine, mine)
    monkeypatch.setattr(os, 'getuid', lambda: 4711)
    theirs = memory_domain()
    assert theirs != mine and user_of_domain(theirs) == '4711' and differ_in_user(mine, theirs)
    assert not differ_in_user(mine, 'another kernel/1/4711')
