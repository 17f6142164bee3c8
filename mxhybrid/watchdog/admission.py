"""Admit to the job monitor only processes that know the secret of the job.

The monitor greets each connection with a challenge, a number that is used once.  The first line that comes back must be
a ``hello`` with a proof (:func:`mxhybrid.messaging.sealed.prove`) over this number, the name and the rank of the
process.  After any other line, or after none in time, the monitor closes the connection.  The secret itself is never
sent here.
"""
import secrets
import socket
import time
from typing import Any, Dict, List, Optional, Tuple

from ..messaging.sealed import is_proof, prove
from .messages import decode, receive

#: Seconds within which a connection must send its hello.
HELLO_S = 30.0
#: Most bytes of a hello; names of processes are short.
HELLO_BYTES = 4096
#: Connections beyond those of the job that may owe a hello at a time; beyond them the oldest one is closed.
STRANGERS = 64

_NONCE_BYTES = 16


class Admission:
    """The monitor's side of admission, in a job of `expected` processes."""

    def __init__(self, secret: str, expected: int):
        self._secret = secret
        self._limit = expected + STRANGERS
        #: Nonce and deadline of each connection that owes a hello.
        self._waiting: Dict[socket.socket, Tuple[str, float]] = {}

    def __contains__(self, peer: socket.socket) -> bool:
        """Return whether a connection still owes a hello."""
        return peer in self._waiting

    def challenge(self, peer: socket.socket) -> Dict[str, Any]:
        """Register a new connection, which owes a hello from now on, and return the message to send to it."""
        nonce = secrets.token_hex(_NONCE_BYTES)
        self._waiting[peer] = nonce, time.monotonic() + HELLO_S
        return {'challenge': nonce}

    def admit(self, peer: socket.socket, line: bytes) -> Optional[Tuple[str, int]]:
        """Return name and rank of the process that answered its challenge with `line`; None if the answer is wrong."""
        nonce, deadline = self._waiting[peer]
        if len(line) > HELLO_BYTES or time.monotonic() > deadline:
            return None
        try:
            hello = decode(line)['hello']
            name, rank, proof = hello['name'], hello['rank'], hello['proof']
        except (IndexError, KeyError, TypeError, ValueError):
            return None
        if not isinstance(name, str) or type(rank) is not int or not isinstance(proof, str):
            return None
        if not is_proof(proof, self._secret, nonce, name, rank):
            return None
        del self._waiting[peer]
        return name, rank

    def overdue(self) -> List[socket.socket]:
        """Return the connections to close: those past their deadline, and the oldest if there are too many."""
        now = time.monotonic()
        late = [peer for peer, (_, deadline) in self._waiting.items() if now > deadline]
        in_time = [peer for peer in self._waiting if peer not in late]
        return late + in_time[:max(0, len(in_time) - self._limit)]

    def forget(self, peer: socket.socket) -> None:
        self._waiting.pop(peer, None)

    def close(self) -> None:
        """Admit no more connections, and forget the secret."""
        self._secret = secrets.token_hex()


def answer_challenge(sock: socket.socket, secret: str, name: str, rank: int, seconds: float = HELLO_S
                     ) -> Dict[str, Any]:
    """Receive the challenge on the connecting side and return the answer to send; OSError if none comes in time."""
    try:
        nonce = receive(sock, HELLO_BYTES, seconds)['challenge']
        return {'hello': {'name': name, 'rank': rank, 'proof': prove(secret, nonce, name, rank)}}
    except (IndexError, KeyError, TypeError, ValueError):
        raise ConnectionError('the process that listens there is not a job monitor: its first message is not a '
                              'challenge') from None
