"""Messages are read however they are cut; incomplete ones spoil nothing."""
import json
import socket
import time
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from mxhybrid.watchdog import messages
from mxhybrid.watchdog.messages import LineBuffer, Sender, decode, receive, send

pytestmark = pytest.mark.both_pythons


@pytest.fixture
def pair():
    """Both ends of a connection over TCP."""
    with socket.create_server(('127.0.0.1', 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    with near, far:
        yield near, far


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers()), max_size=5), st.lists(st.integers(0, 200)))
def test_messages_come_whole_however_they_are_cut(said, cuts):
    text = b''.join(json.dumps(message).encode() + b'\n' for message in said)
    bounds = [0] + sorted(min(cut, len(text)) for cut in cuts) + [len(text)]
    lines, heard = LineBuffer(), []
    for start, stop in zip(bounds, bounds[1:]):
        heard += [decode(line) for line in lines.feed(text[start:stop])]
    assert heard == said and lines.pending == 0
    assert lines.feed(b'x' * 7) == [] and lines.pending == 7


@pytest.mark.parametrize('line', [b'', b'{', b'\xff', b'[' * 100000])
def test_a_malformed_message_is_a_value_error(line):
    with pytest.raises(ValueError):
        decode(line)


@pytest.mark.parametrize('text, error', [
    (b'{"a": 1', ConnectionError), (b'nonsense\n', ValueError), (b' ' * 70000, ValueError)])
def test_an_answer_that_is_late_or_malformed(pair, text, error):
    near, far = pair
    near.sendall(text)
    near.shutdown(socket.SHUT_WR)
    with pytest.raises(error):
        receive(far, 1000, 10)


def test_a_silent_connection_is_not_waited_for(pair):
    near, far = pair
    with pytest.raises(socket.timeout):
        receive(far, 1000, 0.05)
    send(near, {'a': 1})
    assert receive(far, 1000, 10) == {'a': 1}


def test_objects_without_json_are_sent_as_plain_values(pair):
    near, far = pair
    assert Sender(near).send({'a': SimpleNamespace(item=lambda: 7), 'b': ValueError('c')})
    assert receive(far, 1000, 10) == {'a': 7, 'b': 'c'}


def test_a_byte_by_byte_reader_is_given_up(monkeypatch):
    def send_a_byte(text):
        time.sleep(0.05)
        return 1

    trickling = SimpleNamespace(settimeout=lambda seconds: None, setsockopt=lambda *option: None, send=send_a_byte)
    monkeypatch.setattr(messages, 'SEND_TIMEOUT_S', 1)
    start = time.monotonic()
    assert not Sender(trickling).send({'long': 'x' * 100000})
    assert time.monotonic() - start < 10


def test_an_incomplete_message_does_not_spoil_the_next_one(pair, monkeypatch):
    monkeypatch.setattr(messages, 'SEND_TIMEOUT_S', 1)
    near, far = pair
    writer = Sender(near)
    while writer.send({'long': 'x' * 100000}):  # nobody reads
        pass
    far.setblocking(False)
    lines, received = LineBuffer(), []
    whole = False
    while not whole:
        try:
            received += lines.feed(far.recv(1 << 20))
        except BlockingIOError:
            whole = writer.send({'last': 1})
    far.settimeout(10)
    while not received or b'last' not in received[-1]:
        received += lines.feed(far.recv(1 << 20))
    assert decode(received[-1]) == {'last': 1} and not received[-2].endswith(b'}')
    assert all(decode(line) == {'long': 'x' * 100000} for line in received[:-2])
