"""Connects the workers of a host with their leader, and the leaders of all hosts with each other."""
import secrets
import socket
import struct
import time
from typing import Any, Callable, Dict, List, Optional

from ..base.errors import JobError
from ..base.local_sockets import Connection, Listener, connect
from ..base.settings import variable
from .topology import Topology

#: What a connection begins with: a secret, and the place of who connects; seconds that this may take.
_TOKEN_BYTES, _PLACE, _GREETING_S = 16, struct.Struct('<I'), 5.0


def connect_host(topology: Topology, purposes: List[str], exchange: Callable[[Any], List[Any]], timeout: float
                 ) -> Dict[str, Dict[int, Connection]]:
    """Connect each follower with its leader, once for each purpose (collective).

    `exchange` gives every worker the JSON values of all.  Returns by purpose and rank a leader's followers, or a
    follower's leader.  Raises JobError where a follower cannot reach its leader, or does not come within `timeout`
    seconds.
    """
    rank, leader, followers = topology.rank, topology.leader, topology.followers
    listener = Listener() if followers else None
    names = exchange(listener and listener.name)
    found: Dict[str, Dict[int, Connection]] = {purpose: {} for purpose in purposes}
    try:
        if leader != rank:
            for purpose in purposes:
                found[purpose][leader] = connect(names[leader])
                found[purpose][leader].send([purpose, rank])
        deadline = time.monotonic() + timeout
        while listener is not None and any(len(found[purpose]) < len(followers) for purpose in purposes):
            connection = listener.accept(max(0.01, deadline - time.monotonic()))
            (purpose, follower), _ = connection.receive(deadline - time.monotonic())
            found[purpose][follower] = connection
    except socket.timeout:
        missing = [other for other in followers if not all(other in found[purpose] for purpose in purposes)]
        raise JobError('worker %d waited %g s for the workers %s of its host: see their output for the cause, or raise '
                       '%s' % (rank, timeout, missing, variable('timeout'))) from None
    except OSError as error:
        raise JobError('worker %d cannot connect to worker %d of its host for local aggregation (%s): switch it off '
                       'with %s=0' % (rank, leader, error, variable('local_aggregation'))) from error
    finally:
        if listener is not None:
            listener.close()
    return found


def connect_leaders(place: Optional[int], address: str, exchange: Callable[[Any], List[Any]], timeout: float
                    ) -> Dict[int, socket.socket]:
    """Connect this process with all others that have a place, None for one that leads no host (collective).

    `address` is that of this host, at which the others reach it; `exchange` gives every worker of the job the JSON
    values of all.  Returns sockets by place.  Raises JobError where a connection does not come about within `timeout`
    seconds.
    """
    if place is None:
        exchange(None)
        return {}
    token = secrets.token_bytes(_TOKEN_BYTES)
    found: Dict[int, socket.socket] = {}
    deadline = time.monotonic() + timeout
    with socket.create_server((address, 0), backlog=1024) as listener:
        everybody = [other for other in exchange([place, list(listener.getsockname()[:2]), token.hex()]) if other]
        try:
            for other, (host, port), theirs in everybody:
                if other < place:
                    found[other] = socket.create_connection((host, port), timeout=timeout)
                    found[other].sendall(bytes.fromhex(theirs) + _PLACE.pack(place))
            while len(found) < len(everybody) - 1:
                listener.settimeout(max(0.01, deadline - time.monotonic()))
                sock, _ = listener.accept()
                other = _greeting(sock, token)
                if other is None or other in found:
                    sock.close()
                else:
                    found[other] = sock
        except OSError as error:
            missing = [host for other, (host, _), _ in everybody if other not in found and other != place]
            for sock in found.values():
                sock.close()
            raise JobError('no connection between this host (%s) and %s within %g s for sums of dense gradients (%s): '
                           'open the network between the hosts, or switch local aggregation off with %s=0'
                           % (address, ', '.join(missing), timeout, error, variable('local_aggregation'))) from error
    return found


def _greeting(sock: socket.socket, token: bytes) -> Optional[int]:
    """Who has connected: its place, or None for a stranger."""
    sock.settimeout(_GREETING_S)
    greeting = b''
    try:
        while len(greeting) < _TOKEN_BYTES + _PLACE.size:
            data = sock.recv(_TOKEN_BYTES + _PLACE.size - len(greeting))
            if not data:
                return None
            greeting += data
    except OSError:
        return None
    known = secrets.compare_digest(greeting[:_TOKEN_BYTES], token)
    return _PLACE.unpack(greeting[_TOKEN_BYTES:])[0] if known else None
