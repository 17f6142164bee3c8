"""Admission to the job monitor; its thread, its port and the job survive all that strangers do."""
import contextlib
import json
import socket
import threading
import time

import pytest
from hypothesis import example, given, strategies as st

from mxhybrid.messaging.sealed import new_secret, prove
from mxhybrid.watchdog import admission
from mxhybrid.watchdog.admission import HELLO_BYTES, STRANGERS, Admission, answer_challenge
from mxhybrid.watchdog.lifeline import Lifeline
from mxhybrid.watchdog.messages import send
from mxhybrid.watchdog.monitor import Monitor

pytestmark = pytest.mark.both_pythons

SECRET = new_secret()
LIMIT_S = 15
NAME = 'worker 1 (host h)'

# ------------------------------------------------------------------------------------------ the decision


def asked(secret=SECRET):
    """Return an admission, and the nonce with which it has challenged a peer."""
    door = Admission(secret, 4)
    return door, door.challenge('peer')['challenge']


def hello(nonce, name=NAME, rank=1, secret=SECRET, **changes):
    """Return an answer to a challenge."""
    return json.dumps({'hello': dict({'name': name, 'rank': rank, 'proof': prove(secret, nonce, name, rank)},
                                     **changes)}).encode()


def test_a_process_with_the_secret_is_admitted():
    door, nonce = asked()
    assert 'peer' in door
    assert door.admit('peer', hello(nonce)) == (NAME, 1)
    assert 'peer' not in door and not door.overdue()


def test_every_challenge_is_another():
    door = Admission(SECRET, 4)
    assert len({door.challenge(peer)['challenge'] for peer in range(100)}) == 100


@pytest.mark.parametrize('answer', [
    lambda nonce: hello(nonce, secret='other'),
    lambda nonce: hello(nonce[:-1]),
    lambda nonce: hello(''),
    lambda nonce: hello(nonce, name='worker 2 (host h)', proof=prove(SECRET, nonce, NAME, 1)),
    lambda nonce: hello(nonce, rank=2, proof=prove(SECRET, nonce, NAME, 1)),
    lambda nonce: hello(nonce, proof=None),
    lambda nonce: hello(nonce, proof='é' * 64),
    lambda nonce: hello(nonce, rank='1', proof=prove(SECRET, nonce, NAME, '1')),
    lambda nonce: hello(nonce, rank=True, proof=prove(SECRET, nonce, NAME, True)),
    lambda nonce: hello(nonce, rank=1.0, proof=prove(SECRET, nonce, NAME, 1.0)),
    lambda nonce: hello(nonce, name=[1], proof=prove(SECRET, nonce, [1], 1)),
    lambda nonce: hello(nonce, name='x' * HELLO_BYTES),
    lambda nonce: b'{"hello": {"name": "x", "rank": 1}}',
    lambda nonce: b'{"hello": {"name": "x", "rank": Infinity, "proof": "0"}}',
    lambda nonce: b'{"fail": "it is over"}',
    lambda nonce: b'[' * HELLO_BYTES,
    lambda nonce: b'{"hello": ' * (HELLO_BYTES // 10),
])
def test_a_process_without_the_secret_remains_a_stranger(answer):
    door, nonce = asked()
    assert door.admit('peer', answer(nonce)) is None
    assert 'peer' in door
    assert door.admit('peer', hello(nonce)) == (NAME, 1)


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.sampled_from(['hello', 'name', 'rank', 'proof']), inner, max_size=4), max_leaves=6)


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
@example(b'{"hello": {"name": "\\ud800", "rank": 1, "proof": "\\ud800"}}')
def test_noise_is_a_stranger(line):
    door, nonce = asked()
    assert door.admit('peer', line) is None
    assert door.admit('peer', hello(nonce)) == (NAME, 1)


def test_a_hello_that_was_overheard_is_worth_nothing():
    door = Admission(SECRET, 4)
    overheard = hello(door.challenge('a')['challenge'])
    assert door.admit('a', overheard) == (NAME, 1)
    door.challenge('b')
    assert door.admit('b', overheard) is None


def test_hellos_that_come_late_are_refused(monkeypatch):
    monkeypatch.setattr(admission, 'HELLO_S', -1.0)
    door, nonce = asked()
    assert door.overdue() == ['peer']
    assert door.admit('peer', hello(nonce)) is None


def test_the_oldest_of_too_many_go():
    door = Admission(SECRET, 4)
    for peer in range(STRANGERS + 4):
        door.challenge(peer)
    assert not door.overdue()
    door.challenge('one')
    door.challenge('two')
    assert door.overdue() == [0, 1]
    door.forget(0)
    door.forget(1)
    assert not door.overdue()


def test_an_admission_without_the_secret_admits_no_process():
    door, nonce = asked()
    door.close()
    assert door.admit('peer', hello(nonce)) is None


# ------------------------------------------------------------------------------------------ the monitor


@pytest.fixture
def monitor():
    """A monitor and the failures that it reports."""
    job_monitor = Monitor('127.0.0.1', 1, 0, SECRET)
    job_monitor.failures = []
    job_monitor.report_failure = lambda text, **_: job_monitor.failures.append(text)
    yield job_monitor
    assert job_monitor._thread.is_alive()
    assert not job_monitor.failures


def connect(monitor):
    """Connect with a monitor."""
    return socket.create_connection(monitor.address, timeout=LIMIT_S)


def wait_for_end(sock):
    """Wait until the other end closes a connection."""
    with contextlib.suppress(ConnectionResetError):
        while sock.recv(4096):
            pass


def serves(monitor):
    """Return whether a process of the job can still join."""
    with connect(monitor) as peer, peer.makefile() as answers:
        send(peer, answer_challenge(peer, SECRET, NAME, 0))
        send(peer, {'done': [1, ['push']]})
        is_answered = json.loads(answers.readline()) == {'finished': 0, 'log': [1, ['push']]}
        send(peer, {'bye': True})
    return is_answered


@pytest.mark.parametrize('says', [
    b'{"hello": {"name": "worker 0", "rank": 0}}\n{"fail": "it is over"}\n', b'{"fail": "it is over"}\n', b'\n',
    b'GET / HTTP/1.1\r\n\r\n', b'[' * 2000 + b'\n', b'0' * 10 * HELLO_BYTES, b'[' * 70000 + b'\n', b'\x16\x03\x01\n',
    b'\xff\xfe\n', b'[1]\n7\nnull\n"x"\n', b'5\n', b'[]\n', b'{"hello": 5}\n', b'{"hello": {}}\n', b'{"done": 1}\n',
    b'{"hello": {"name": "x", "rank": "y"}}\n'], ids=lambda says: repr(says[:40]))
def test_connections_of_strangers_are_closed(monitor, says):
    with connect(monitor) as stranger:
        stranger.sendall(says)
        wait_for_end(stranger)
    assert serves(monitor)


def test_the_connection_of_a_silent_stranger_is_closed(monkeypatch):
    monkeypatch.setattr(admission, 'HELLO_S', 0.2)
    silent = Monitor('127.0.0.1', 1, 0, SECRET)
    with connect(silent) as stranger:
        wait_for_end(stranger)
    assert silent.failure is None and silent._thread.is_alive()


def test_crowds_of_strangers(monitor):
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(connect(monitor)) for _ in range(2 * STRANGERS)]
        assert serves(monitor)
        for stranger in crowd[:STRANGERS // 2]:
            wait_for_end(stranger)
        assert crowd[-1].recv(4096).startswith(b'{"challenge": ')
        crowd[-1].setblocking(False)
        with pytest.raises(BlockingIOError):  # otherwise it would be closed
            crowd[-1].recv(1)
    assert serves(monitor)


def test_strangers_are_logged_now_and_then_only(monitor, caplog):
    for _ in range(9):
        with connect(monitor) as stranger:
            stranger.sendall(b'{"fail": "it is over"}\n')
            wait_for_end(stranger)
    said = [text for text in caplog.messages if 'no process of this job' in text]
    assert [text.rpartition('(')[2] for text in said] == ['%d so far)' % count for count in (1, 2, 4, 8)]
    assert '127.0.0.1' in said[0] and SECRET not in caplog.text and 'it is over' not in caplog.text


# ------------------------------------------------------------------------------------------ the lifeline


def test_a_lifeline_tries_again_until_a_monitor_answers():
    with socket.socket() as server:
        server.bind(('127.0.0.1', 0))  # it refuses connections until it listens
        server.settimeout(LIMIT_S)
        peers, lines = [], []

        def answer():
            time.sleep(0.3)
            server.listen()
            for challenge in (b'', b'SSH-2.0-x\r\n', b'7\n', b'{}\n', b'[' * 2 * HELLO_BYTES):
                with server.accept()[0] as stranger:
                    stranger.sendall(challenge)
            peers.append(server.accept()[0])
            peers[0].sendall(b'{"challenge": "7"}\n')
            with peers[0].makefile() as said:
                lines.append(json.loads(said.readline()))

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        line = Lifeline(server.getsockname(), NAME, 1, LIMIT_S, SECRET)
        thread.join(LIMIT_S)
        assert lines == [json.loads(hello('7').decode())]
        line._end_announced = True  # otherwise the end of the connection would end this process
        peers[0].close()
