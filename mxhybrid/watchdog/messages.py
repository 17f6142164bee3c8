"""Messages over a socket: JSON values, one a line, that are sent whole and received in pieces."""
import json
import socket
import struct
import threading
import time
from typing import Any, List

from ..base import json_text

#: Seconds after which a process gives up sending to a process that does not read.
SEND_TIMEOUT_S = 5


def _plain(value: Any) -> Any:
    """Return a JSON value for a NumPy number, or text for any other object."""
    return value.item() if hasattr(value, 'item') else str(value)


def _encode(message: Any) -> bytes:
    return json.dumps(message, default=_plain).encode() + b'\n'


def decode(line: bytes) -> Any:
    """Return the message in a line; ValueError if it is not JSON."""
    return json_text.parse(line)


def send(sock: socket.socket, message: Any) -> None:
    """Send a message over a socket that no other thread sends to."""
    sock.sendall(_encode(message))


def receive(sock: socket.socket, limit: int, seconds: float) -> Any:
    """Receive a single message of at most `limit` bytes within `seconds`.

    OSError if none comes in time; ValueError if it is too long or not JSON.
    """
    deadline = time.monotonic() + seconds
    text = b''
    while b'\n' not in text:
        if len(text) > limit:
            raise ValueError('the message has more than %d bytes' % limit)
        sock.settimeout(max(0.01, deadline - time.monotonic()))
        data = sock.recv(65536)
        if not data:
            raise ConnectionError('the other side closed the connection')
        text += data
    return decode(text.partition(b'\n')[0])


class LineBuffer:
    """A buffer that joins the pieces that a connection delivers into lines."""

    def __init__(self) -> None:
        self._rest = b''

    def feed(self, data: bytes) -> List[bytes]:
        """Add received bytes and return the lines that they complete."""
        lines: List[bytes] = (self._rest + data).split(b'\n')
        self._rest = lines.pop()
        return lines

    @property
    def pending(self) -> int:
        """The number of bytes of the incomplete line."""
        return len(self._rest)


class Sender:
    """A sender, for any thread, to a process that may not read, or may have gone."""

    def __init__(self, sock: socket.socket):
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack('ll', SEND_TIMEOUT_S, 0))
        self._sock = sock
        self._lock = threading.Lock()
        self._incomplete = False

    def send(self, message: Any) -> bool:
        """Send a message and return whether it was sent."""
        if not self._lock.acquire(timeout=SEND_TIMEOUT_S):
            return False
        try:
            # A newline ends a message that was sent in part, so that it does not spoil this one.
            text = b'\n' * self._incomplete + _encode(message)
            self._incomplete = True
            self._send_all(text)
            self._incomplete = False
            return True
        except OSError:
            return False
        finally:
            self._lock.release()

    def _send_all(self, text: bytes) -> None:
        """Send all bytes; TimeoutError if that takes too long, as to a process whose buffers get free byte by byte."""
        deadline, rest = time.monotonic() + SEND_TIMEOUT_S, memoryview(text)
        while rest:
            if time.monotonic() > deadline:
                raise TimeoutError('the message was not sent within %g s' % SEND_TIMEOUT_S)
            rest = rest[self._sock.send(rest):]
