"""Who may join the job monitor: processes that know the job's secret.

The monitor greets each connection with a challenge, a number used once; the first line that comes back must be a
``hello`` with a proof (:func:`mxhybrid.base.sealed.prove`) over this number, name and rank.  Anything else, or
nothing in time, and the connection is closed.  The secret itself never travels here.
"""
import secrets
import socket
import time
from typing import Any, Dict, List, Optional, Tuple

from ..base.sealed import is_proof, prove
from .messages import decode, receive

#: Seconds that a connection may take to say hello.
HELLO_S = 30.0
#: Bytes of a hello; names of processes are short.
HELLO_BYTES = 4096
#: Connections beyond those of the job that may be about to say hello; then the oldest is closed.
STRANGERS = 64

_NONCE_BYTES = 16


class Admission:
    """The monitor's side of a job of `expected` processes."""

    def __init__(self, secret: str, expected: int):
        self._secret = secret
        self._limit = expected + STRANGERS
        self._waiting: Dict[socket.socket, Tuple[str, float]] = {}

    def __contains__(self, peer: socket.socket) -> bool:
        """Whether `peer` has yet to say hello."""
        return peer in self._waiting

    def challenge(self, peer: socket.socket) -> Dict[str, Any]:
        """What a new connection is to be told; it belongs to a stranger from now on."""
        nonce = secrets.token_hex(_NONCE_BYTES)
        self._waiting[peer] = nonce, time.monotonic() + HELLO_S
        return {'challenge': nonce}

    def admit(self, peer: socket.socket, line: bytes) -> Optional[Tuple[str, int]]:
        """Name and rank of the process that answered its challenge with `line`; None if it still is a stranger."""
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
        """Connections to be closed: they took too long, or there are too many."""
        now = time.monotonic()
        late = [peer for peer, (_, deadline) in self._waiting.items() if now > deadline]
        spare = [peer for peer in self._waiting if peer not in late]
        return late + spare[:max(0, len(spare) - self._limit)]

    def forget(self, peer: socket.socket) -> None:
        """A connection has gone."""
        self._waiting.pop(peer, None)

    def close(self) -> None:
        """Admit nobody any more, and forget the secret."""
        self._secret = secrets.token_hex()


def answer_challenge(sock: socket.socket, secret: str, name: str, rank: int, seconds: float = HELLO_S
                     ) -> Dict[str, Any]:
    """The connecting side: what to answer to the challenge that `sock` is about to bring; OSError if it does not."""
    try:
        nonce = receive(sock, HELLO_BYTES, seconds)['challenge']
        return {'hello': {'name': name, 'rank': rank, 'proof': prove(secret, nonce, name, rank)}}
    except (IndexError, KeyError, TypeError, ValueError):
        raise ConnectionError('what listens there is no job monitor') from None
