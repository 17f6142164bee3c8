"""Connections between processes of a job: each end proves that it knows a secret before a byte counts.

Who accepts sends a challenge, a number used once; who connects answers with a proof over that number and its own
number, and a challenge of its own, which is answered likewise.  The secret itself does not travel.
"""
import contextlib
import json
import secrets
import socket
import time
from typing import Any, Dict, List, Sequence, Tuple

from .errors import JobError
from .sealed import is_proof, prove
from .settings import variable

#: Bytes that a line may have before its sender is known, and seconds that who connects may take for one.
_LINE_BYTES, _LINE_S = 1024, 5.0


def _send(sock: socket.socket, message: Dict[str, Any]) -> None:
    sock.sendall(json.dumps(message).encode() + b'\n')


def _receive(sock: socket.socket, deadline: float) -> Dict[str, Any]:
    """One line, and no byte more: what follows is not for Python.  OSError, or ValueError for what is none."""
    line = b''
    while not line.endswith(b'\n'):
        sock.settimeout(max(0.01, deadline - time.monotonic()))
        byte = sock.recv(1)
        if not byte or len(line) > _LINE_BYTES:
            raise ConnectionError('it hung up' if not byte else 'it says too much')
        line += byte
    message = json.loads(line.decode())
    if not isinstance(message, dict):
        raise ValueError('a message that is none')
    return message


def _greet(sock: socket.socket, secret: str, purpose: str, number: int) -> int:
    """The accepting side: the number of who has connected; OSError or ValueError for a stranger."""
    nonce = secrets.token_hex(16)
    _send(sock, {'challenge': nonce})
    answer = _receive(sock, time.monotonic() + _LINE_S)
    other, proof, challenge = answer.get('node'), answer.get('proof'), answer.get('challenge')
    if type(other) is not int or not isinstance(proof, str) or not isinstance(challenge, str):
        raise ValueError('no proof')
    if not is_proof(proof, secret, nonce, purpose, other):
        raise ValueError('a wrong proof')
    _send(sock, {'proof': prove(secret, challenge, purpose, number)})
    return other


def _introduce(sock: socket.socket, secret: str, purpose: str, number: int, other: int, deadline: float) -> None:
    """The connecting side; OSError or ValueError where somebody else than `other` answers."""
    challenge = _receive(sock, deadline).get('challenge')
    if not isinstance(challenge, str):
        raise ValueError('no challenge')
    nonce = secrets.token_hex(16)
    _send(sock, {'node': number, 'proof': prove(secret, challenge, purpose, number), 'challenge': nonce})
    proof = _receive(sock, deadline).get('proof')
    if not isinstance(proof, str) or not is_proof(proof, secret, nonce, purpose, other):
        raise ValueError('a wrong proof')


def connect_peers(number: int, addresses: Sequence[Tuple[str, int]], wanted: Sequence[int], door: socket.socket,
                  secret: str, timeout: float, purpose: str) -> Dict[int, socket.socket]:
    """Connect with all who are `wanted`, by their numbers; they do the same at the same time.

    `addresses` are everybody's, by number, and `door` listens at this one's.  Proofs are for a `purpose`: one made for
    another is worth nothing.  Who connects and cannot prove to be of the job is turned away.  JobError where one does
    not come within `timeout` seconds.
    """
    found: Dict[int, socket.socket] = {}
    deadline = time.monotonic() + timeout
    try:
        for other in wanted:
            if other < number:
                sock = socket.create_connection(addresses[other], timeout=timeout)
                try:
                    _introduce(sock, secret, purpose, number, other, deadline)
                except BaseException:
                    sock.close()
                    raise
                found[other] = sock
        while len(found) < len(wanted):
            left = deadline - time.monotonic()
            if left <= 0:  # strangers may come without end
                raise socket.timeout('timed out')
            door.settimeout(left)
            sock, _ = door.accept()
            with contextlib.suppress(OSError, ValueError):
                other = _greet(sock, secret, purpose, number)
                if other in wanted and other not in found:
                    found[other] = sock
                    continue
            sock.close()
    except (OSError, ValueError) as error:
        missing: List[str] = [addresses[other][0] for other in wanted if other not in found]
        for sock in found.values():
            sock.close()
        raise JobError('no connection for %s between %s and %s within %g s (%s): open the network between the hosts, '
                       'or raise %s' % (purpose, addresses[number][0], ', '.join(missing), timeout, error,
                                        variable('timeout'))) from error
    for sock in found.values():
        sock.settimeout(None)
    return found
