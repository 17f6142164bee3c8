"""Connections between nodes of different hosts: each end proves that it knows the job's secret before a byte counts.

Who accepts sends a challenge, a number used once; who connects answers with a proof over that number and its own
number of a node, and a challenge of its own, which is answered likewise.  The secret itself does not travel.
"""
import contextlib
import json
import secrets
import socket
import time
from typing import Any, Dict, List

from ..base.errors import JobError
from ..base.sealed import is_proof, prove
from ..base.settings import variable
from .roster import Roster

#: Bytes that a line may have before its sender is known, and seconds that who connects may take for one.
_LINE_BYTES, _LINE_S = 1024, 5.0
#: What proofs here are for: one made for another purpose is worth nothing.
_NAME = 'a node of the lane'


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


def _greet(sock: socket.socket, secret: str, number: int) -> int:
    """The accepting side: the number of the node that has connected; OSError or ValueError for a stranger."""
    nonce = secrets.token_hex(16)
    _send(sock, {'challenge': nonce})
    answer = _receive(sock, time.monotonic() + _LINE_S)
    other, proof, challenge = answer.get('node'), answer.get('proof'), answer.get('challenge')
    if type(other) is not int or not isinstance(proof, str) or not isinstance(challenge, str):
        raise ValueError('no proof')
    if not is_proof(proof, secret, nonce, _NAME, other):
        raise ValueError('a wrong proof')
    _send(sock, {'proof': prove(secret, challenge, _NAME, number)})
    return other


def _introduce(sock: socket.socket, secret: str, number: int, other: int, deadline: float) -> None:
    """The connecting side; OSError or ValueError where somebody else than node `other` answers."""
    challenge = _receive(sock, deadline).get('challenge')
    if not isinstance(challenge, str):
        raise ValueError('no challenge')
    nonce = secrets.token_hex(16)
    _send(sock, {'node': number, 'proof': prove(secret, challenge, _NAME, number), 'challenge': nonce})
    proof = _receive(sock, deadline).get('proof')
    if not isinstance(proof, str) or not is_proof(proof, secret, nonce, _NAME, other):
        raise ValueError('a wrong proof')


def connect_nodes(number: int, roster: Roster, door: socket.socket, secret: str, timeout: float
                  ) -> Dict[int, socket.socket]:
    """Connect node `number` with all nodes of other hosts, by their numbers; they do the same at the same time.

    `door` listens at the node's address.  Who connects and cannot prove to be of the job is turned away.  JobError
    where a node does not come within `timeout` seconds.
    """
    hosts = roster.node_hosts
    wanted = [other for other in range(len(hosts)) if hosts[other] != hosts[number]]
    found: Dict[int, socket.socket] = {}
    deadline = time.monotonic() + timeout
    try:
        for other in wanted:
            if other < number:
                entry = roster.nodes[other]
                sock = socket.create_connection((entry.address, entry.port), timeout=timeout)
                try:
                    _introduce(sock, secret, number, other, deadline)
                except BaseException:
                    sock.close()
                    raise
                found[other] = sock
        while len(found) < len(wanted):
            door.settimeout(max(0.01, deadline - time.monotonic()))
            sock, _ = door.accept()
            with contextlib.suppress(OSError, ValueError):
                other = _greet(sock, secret, number)
                if other in wanted and other not in found:
                    found[other] = sock
                    continue
            sock.close()
    except (OSError, ValueError) as error:
        missing: List[str] = [roster.nodes[other].address for other in wanted if other not in found]
        for sock in found.values():
            sock.close()
        raise JobError('no connection between the servers at %s and %s within %g s (%s): open the network between the '
                       'hosts, or raise %s' % (roster.nodes[number].address, ', '.join(missing), timeout, error,
                                               variable('timeout'))) from error
    for sock in found.values():
        sock.settimeout(None)
    return found
