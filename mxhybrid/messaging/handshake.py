"""Connections between processes of a job: each end proves that it knows the secret before any other data is read.

The accepting side sends a challenge, a number that is used once.  The connecting side answers with a proof over that
number and its own number, and with a challenge of its own, which is answered in the same way.  The secret is not sent.
"""
import contextlib
import json
import secrets
import socket
import time
from typing import Any, Dict, List, Sequence, Tuple

from ..base import json_text
from ..base.errors import JobError
from ..base.settings import variable
from .sealed import is_proof, prove

#: Most bytes of a line, and most seconds for it, before its sender is known.
_LINE_BYTES, _LINE_S = 1024, 5.0


def _send(sock: socket.socket, message: Dict[str, Any]) -> None:
    sock.sendall(json.dumps(message).encode() + b'\n')


def _receive(sock: socket.socket, deadline: float) -> Dict[str, Any]:
    """Receive one line, and no byte more, since compiled code reads the rest; OSError, or ValueError if malformed."""
    line = b''
    while not line.endswith(b'\n'):
        sock.settimeout(max(0.01, deadline - time.monotonic()))
        byte = sock.recv(1)
        if not byte or len(line) > _LINE_BYTES:
            raise ConnectionError('the other side closed the connection' if not byte
                                  else 'the message has more than %d bytes' % _LINE_BYTES)
        line += byte
    message = json_text.parse(line)
    if not isinstance(message, dict):
        raise ValueError('the message is not a JSON object')
    return message


def greet(sock: socket.socket, secret: str, purpose: str, number: int) -> int:
    """Return the number of the connecting process, on the accepting side; OSError or ValueError for a stranger."""
    nonce = secrets.token_hex(16)
    _send(sock, {'challenge': nonce})
    answer = _receive(sock, time.monotonic() + _LINE_S)
    other, proof, challenge = answer.get('number'), answer.get('proof'), answer.get('challenge')
    if type(other) is not int or not isinstance(proof, str) or not isinstance(challenge, str):
        raise ValueError('the message has no proof')
    if not is_proof(proof, secret, nonce, purpose, other):
        raise ValueError('the proof is wrong')
    _send(sock, {'proof': prove(secret, challenge, purpose, number)})
    return other


def introduce(sock: socket.socket, secret: str, purpose: str, number: int, other: int, deadline: float) -> None:
    """Identify this process to `other`, on the connecting side; OSError or ValueError if another program answers."""
    challenge = _receive(sock, deadline).get('challenge')
    if not isinstance(challenge, str):
        raise ValueError('the message has no challenge')
    nonce = secrets.token_hex(16)
    _send(sock, {'number': number, 'proof': prove(secret, challenge, purpose, number), 'challenge': nonce})
    proof = _receive(sock, deadline).get('proof')
    if not isinstance(proof, str) or not is_proof(proof, secret, nonce, purpose, other):
        raise ValueError('the proof is wrong')


def connect_peers(number: int, addresses: Sequence[Tuple[str, int]], peers: Sequence[int], listener: socket.socket,
                  secret: str, timeout: float, purpose: str) -> Dict[int, socket.socket]:
    """Connect with all `peers`, given by number, which connect with this process at the same time.

    `addresses` are those of all processes, by number; `listener` listens at the address of this one.  A proof is valid
    for one `purpose` only.  Connections without a valid proof are closed.  JobError if a peer does not connect within
    `timeout` seconds.
    """
    connections: Dict[int, socket.socket] = {}
    deadline = time.monotonic() + timeout
    try:
        for other in peers:
            if other < number:
                sock = socket.create_connection(addresses[other], timeout=timeout)
                try:
                    introduce(sock, secret, purpose, number, other, deadline)
                except BaseException:
                    sock.close()
                    raise
                connections[other] = sock
        while len(connections) < len(peers):
            left_s = deadline - time.monotonic()
            if left_s <= 0:  # strangers may connect without end
                raise socket.timeout('timed out')
            listener.settimeout(left_s)
            sock, _ = listener.accept()
            with contextlib.suppress(OSError, ValueError):
                other = greet(sock, secret, purpose, number)
                if other in peers and other not in connections:
                    connections[other] = sock
                    continue
            sock.close()
    except (OSError, ValueError) as error:
        missing: List[str] = [addresses[other][0] for other in peers if other not in connections]
        for sock in connections.values():
            sock.close()
        raise JobError('no connection for %s between %s and %s within %g s (%s): open the network between the hosts, '
                       'or raise %s' % (purpose, addresses[number][0], ', '.join(missing), timeout, error,
                                        variable('timeout'))) from error
    for sock in connections.values():
        sock.settimeout(None)
    return connections
