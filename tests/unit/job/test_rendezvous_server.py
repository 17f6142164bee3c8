"""The server at which Horovod's workers meet."""
import contextlib
import http.client
import os
import resource
import selectors
import socket
import threading

import pytest
from hypothesis import given, strategies as st

from mxhybrid.base import launcher
from mxhybrid.job import rendezvous_server
from mxhybrid.job.rendezvous_server import RendezvousServer, parse_request, replace_rendezvous
from mxhybrid.messaging.notice_board import NoticeBoard

pytestmark = pytest.mark.both_pythons


@pytest.fixture
def server():
    server = RendezvousServer('127.0.0.1')
    yield server
    server.close()


def connect(server, timeout=20):
    return socket.create_connection(('127.0.0.1', server.port), timeout)


def ask(server, method, path, body=None):
    """Return the status and the body of an answer, as Horovod's client asks for it."""
    connection = http.client.HTTPConnection('127.0.0.1', server.port, timeout=20)
    with contextlib.closing(connection):
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_values_are_kept_under_their_paths(server):
    large = bytes(range(256)) * 4000
    assert ask(server, 'PUT', '/global_/0', large)[0] == 200
    assert ask(server, 'PUT', '/local_a/0', b'')[0] == 200
    assert ask(server, 'GET', '/global_/0') == (200, large)
    assert ask(server, 'GET', '/local_a/0') == (200, b'')
    assert ask(server, 'DELETE', '/global_/0')[0] == 200
    assert ask(server, 'GET', '/global_/0') == (200, large), 'a worker that is late needs it, too'


class _HeldSelector(selectors.DefaultSelector):
    """A selector that a test can hold back."""

    def __init__(self):
        super().__init__()
        self.may_go, self.is_held = threading.Event(), threading.Event()
        self.may_go.set()

    def select(self, timeout=None):
        if not self.may_go.is_set():
            self.is_held.set()
            assert self.may_go.wait(20)
        return super().select(timeout)


def test_a_client_may_leave_while_it_is_answered(monkeypatch):
    """A call of select() returns a value, and then the end of the connection that waits for it."""
    monkeypatch.setattr(selectors, 'DefaultSelector', _HeldSelector)
    server = RendezvousServer('127.0.0.1')
    with contextlib.closing(server), contextlib.ExitStack() as stack:
        waiting, sender = (stack.enter_context(connect(server)) for _ in range(2))
        waiting.sendall(b'GET /global_/0 HTTP/1.1\r\n\r\n')
        sender.sendall(b'PUT /global_/0 HTTP/1.1\r\nContent-Length: 1\r\n\r\n')
        assert ask(server, 'PUT', '/global_/1', b'value')[0] == 200  # the server has received the bytes before
        server._selector.may_go.clear()
        stack.enter_context(connect(server))
        assert server._selector.is_held.wait(20)
        sender.sendall(b'x')
        waiting.close()
        server._selector.may_go.set()
        assert sender.recv(1000).startswith(b'HTTP/1.0 200')
        assert ask(server, 'GET', '/global_/0') == (200, b'x')


class _CountingSelector(selectors.DefaultSelector):
    """A selector that notes whether its thread sleeps, or finds the same event again and again."""

    def __init__(self):
        super().__init__()
        self.sockets, self.events = [], 0
        self.sleeps_or_spins = threading.Event()

    def select(self, timeout=None):
        self.sockets = [key.fileobj for key in self.get_map().values()]
        if timeout is not None or self.events == 100:
            self.sleeps_or_spins.set()
        events = super().select(timeout)
        self.events += len(events)
        return events


def test_a_server_without_descriptors_sleeps_and_serves_later(monkeypatch, caplog):
    monkeypatch.setattr(selectors, 'DefaultSelector', _CountingSelector)
    server = RendezvousServer('127.0.0.1')
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.closing(server), socket.socket() as early:
        early.settimeout(20)
        lowest_free = os.dup(early.fileno())
        os.close(lowest_free)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
            early.connect(('127.0.0.1', server.port))
            assert server._selector.sleeps_or_spins.wait(20)
            assert server._listener not in server._selector.sockets and server._selector.events == 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        early.sendall(b'PUT /global_/0 HTTP/1.1\r\nContent-Length: 5\r\n\r\nvalue')
        assert early.recv(1000).startswith(b'HTTP/1.0 200')
        assert ask(server, 'GET', '/global_/0') == (200, b'value')
    assert 'raise the limit of open files' in caplog.text


def test_requests_wait_for_a_missing_value(server):
    with contextlib.ExitStack() as stack:
        early = [stack.enter_context(connect(server)) for _ in range(3)]
        for sock in early:
            sock.sendall(b'GET /global_/7 HTTP/1.1\r\nHost: here\r\n\r\n')
        early[0].close()
        assert ask(server, 'PUT', '/global_/8', b'other')[0] == 200
        assert ask(server, 'PUT', '/global_/7', b'value')[0] == 200
        for sock in early[1:]:
            assert sock.recv(1000).endswith(b'Content-Length: 5\r\n\r\nvalue')


def test_a_value_that_does_not_arrive_is_missing(server, monkeypatch):
    monkeypatch.setattr(rendezvous_server, '_HOLD_S', 0.0)
    assert ask(server, 'GET', '/global_/0')[0] == 404
    assert ask(server, 'PUT', '/global_/0', b'value')[0] == 200
    assert ask(server, 'GET', '/global_/0') == (200, b'value')


@pytest.mark.parametrize('request_bytes', [
    b'\x00\xff\r\n\r\n', b'GET /a/b\r\n\r\n', b'POST /a/b HTTP/1.1\r\n\r\n',
    b'PUT /a/b HTTP/1.1\r\nContent-Length: x\r\n\r\n',
    b'PUT /a/b HTTP/1.1\r\nContent-Length: -1\r\n\r\n'])
def test_other_requests_are_refused(server, request_bytes):
    with connect(server) as sock:
        sock.sendall(request_bytes)
        assert sock.recv(1000).startswith(b'HTTP/1.0 400')
    assert ask(server, 'PUT', '/a/b', b'value')[0] == 200


def test_a_request_may_arrive_in_pieces_and_never_end(server, monkeypatch):
    monkeypatch.setattr(rendezvous_server, '_MAX_REQUEST_BYTES', 1 << 16)
    with connect(server) as endless, connect(server) as sock:
        endless.sendall(b'PUT /a/b HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n')
        for piece in (b'PUT /a/c HT', b'TP/1.1\r\nContent-Length: 5\r\n\r', b'\nval', b'ue'):
            sock.sendall(piece)
        assert sock.recv(1000).startswith(b'HTTP/1.0 200')
        with contextlib.suppress(ConnectionError):
            endless.sendall(b'x' * 900000)
            assert endless.recv(1) == b''
    assert ask(server, 'GET', '/a/c') == (200, b'value')


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_are_a_request_or_an_error(head, body):
    try:
        request = parse_request(head + b'\r\n\r\n' + body)
    except ValueError:
        return
    assert request is None or len(request) == 3


def test_connections_of_many_workers_wait_for_a_busy_server(monkeypatch):
    # No thread accepts connections: the kernel alone answers them.
    waits = threading.Event()
    monkeypatch.setattr(RendezvousServer, '_serve', lambda server: waits.wait(60))
    server = RendezvousServer('127.0.0.1')
    with contextlib.ExitStack() as stack:
        stack.callback(server._listener.close)
        stack.callback(server.close)
        stack.callback(waits.set)
        for _ in range(100):
            # A connection takes a second and longer if the backlog is full.
            stack.enter_context(connect(server, timeout=0.9))


def launch_of(rank, local_workers=2, workers=2):
    """Return the description of a job of horovodrun."""
    return launcher.read({'HOROVOD_RANK': str(rank), 'HOROVOD_SIZE': str(workers),
                          'HOROVOD_LOCAL_SIZE': str(local_workers or ''), 'HOROVOD_GLOO_RENDEZVOUS_ADDR': '10.0.0.1',
                          'HOROVOD_GLOO_RENDEZVOUS_PORT': '7'})


@pytest.fixture
def board(server, monkeypatch):
    """A notice board; the variables are those of its job."""
    monkeypatch.setenv('HOROVOD_GLOO_RENDEZVOUS_ADDR', '10.0.0.1')
    monkeypatch.setenv('HOROVOD_GLOO_RENDEZVOUS_PORT', '7')
    monkeypatch.delenv('HOROVOD_ELASTIC', raising=False)
    return NoticeBoard(('127.0.0.1', server.port), 'mxhybrid')


@pytest.mark.parametrize('local_workers', [1, 2])
def test_workers_meet_at_a_server_of_worker_0(local_workers, board):
    ports = []

    def come_early():
        replace_rendezvous(launch_of(1, local_workers), board, '10.0.0.2')
        ports.append(os.environ['HOROVOD_GLOO_RENDEZVOUS_PORT'])

    early = threading.Thread(target=come_early, daemon=True)
    early.start()
    with contextlib.closing(replace_rendezvous(launch_of(0, local_workers), board, '127.0.0.1')) as server:
        early.join(20)
        assert ports == [str(server.port)]
        assert os.environ['HOROVOD_GLOO_RENDEZVOUS_ADDR'] == '127.0.0.1'
        assert ask(server, 'PUT', '/global_/0', b'value')[0] == 200


@pytest.mark.parametrize('case, local_workers, workers', [
    ('unknown hosts', None, 2), ('one worker', 1, 1), ('elastic', 2, 2), ('no board', 2, 2)])
def test_other_jobs_keep_the_server_of_their_launcher(case, local_workers, workers, board, monkeypatch):
    launch = launch_of(0, local_workers, workers)
    if case == 'elastic':
        monkeypatch.setenv('HOROVOD_ELASTIC', '1')
    assert replace_rendezvous(launch, None if case == 'no board' else board, '127.0.0.1') is None
    assert os.environ['HOROVOD_GLOO_RENDEZVOUS_PORT'] == '7'
