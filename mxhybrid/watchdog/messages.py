"""Messages over a socket: JSON values, one a line, written whole and read in pieces."""
import json
import socket
import struct
import threading
import time
from typing import Any, List

#: Seconds after which a process gives up sending to somebody who does not read.
SEND_TIMEOUT_S = 5


def _plain(value: Any) -> Any:
    """A JSON value for a NumPy number, or for anything else."""
    return value.item() if hasattr(value, 'item') else str(value)


def _encode(message: Any) -> bytes:
    return json.dumps(message, default=_plain).encode() + b'\n'


def decode(line: bytes) -> Any:
    """What a line says; ValueError if that is no JSON."""
    try:
        return json.loads(line.decode())
    except RecursionError as error:
        raise ValueError('a message as deep as this one is none') from error


def send(sock: socket.socket, message: Any) -> None:
    """Send one message from a thread that is the only one to do so."""
    sock.sendall(_encode(message))


def receive(sock: socket.socket, limit: int, seconds: float) -> Any:
    """The one message, of at most `limit` bytes, that somebody says in `seconds`, before an answer; OSError where none
    comes in time, ValueError where it is none.
    """
    deadline = time.monotonic() + seconds
    text = b''
    while b'\n' not in text:
        if len(text) > limit:
            raise ValueError('more than %d bytes' % limit)
        sock.settimeout(max(0.01, deadline - time.monotonic()))
        data = sock.recv(65536)
        if not data:
            raise ConnectionError('it hung up')
        text += data
    return decode(text.partition(b'\n')[0])


class LineBuffer:
    """Puts together the lines that a connection brings in pieces."""

    def __init__(self) -> None:
        self._rest = b''

    def feed(self, data: bytes) -> List[bytes]:
        """The lines that end in `data`."""
        lines: List[bytes] = (self._rest + data).split(b'\n')
        self._rest = lines.pop()
        return lines

    @property
    def pending(self) -> int:
        """Bytes of the line that has not ended yet."""
        return len(self._rest)


class Sender:
    """Sends messages from any thread to somebody who may not read, or not be there any more."""

    def __init__(self, sock: socket.socket):
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack('ll', SEND_TIMEOUT_S, 0))
        self._sock = sock
        self._lock = threading.Lock()
        self._incomplete = False

    def send(self, message: Any) -> bool:
        """Send a message; whether it left."""
        if not self._lock.acquire(timeout=SEND_TIMEOUT_S):
            return False
        try:
            # The rest of a message that was given up must not spoil the next one.
            text = b'\n' * self._incomplete + _encode(message)
            self._incomplete = True
            self._sock.sendall(text)
            self._incomplete = False
            return True
        except OSError:
            return False
        finally:
            self._lock.release()
