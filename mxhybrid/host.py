"""Which workers share a host, and the connections between them: they reach servers and other hosts by a leader."""
import secrets
import socket
import struct
import time
from typing import Any, Callable, Dict, List, Optional, Union

from .aggregation import Direct, Follower, Leader
from .client import Client
from .collective import Collective
from .errors import JobError
from .lifeline import ECHO_DELAY_S
from .mesh import Mesh
from .reduction import FollowerReduction, LeaderReduction
from .segments import Connection, Listener, connect
from .settings import variable

#: What a connection begins with: a secret, and the place of who connects; seconds that this may take.
_TOKEN_BYTES, _PLACE, _GREETING_S = 16, struct.Struct('<I'), 5.0


def find_leaders(places: List[str], aggregate: bool) -> List[int]:
    """For each worker the one that speaks for its host: the first one there, or itself without aggregation.

    Parameters
    ----------
    places : list of str
        Of each worker, see :func:`mxhybrid.segments.place_of_host`.
    aggregate : bool
    """
    return [places.index(place) for place in places] if aggregate else list(range(len(places)))


def connect_host(rank: int, leaders: List[int], purposes: List[str], exchange: Callable[[Any], List[Any]],
                 timeout: float) -> Dict[str, Dict[int, Connection]]:
    """Connect each follower with its leader, once for each purpose (collective).

    Parameters
    ----------
    rank : int
        This worker.
    leaders : list of int
        See :func:`find_leaders`.
    purposes : list of str
    exchange : callable
        Gives every worker the JSON values of all.
    timeout : float
        Seconds that a leader waits for all its followers.

    Returns
    -------
    dict
        By purpose and rank: a leader's followers, or a follower's leader.

    Raises
    ------
    JobError
        A follower cannot reach its leader, or does not come.
    """
    followers = [other for other, leader in enumerate(leaders) if leader == rank != other]
    listener = Listener() if followers else None
    names = exchange(listener and listener.name)
    found: Dict[str, Dict[int, Connection]] = {purpose: {} for purpose in purposes}
    leader = leaders[rank]
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


def meet(place: Optional[int], address: str, exchange: Callable[[Any], List[Any]], timeout: float
         ) -> Dict[int, socket.socket]:
    """Connect this process with all others that have a place (collective).

    Parameters
    ----------
    place : int or None
        None if it takes no part.
    address : str
        Of this host, at which the others reach it.
    exchange : callable
        Gives every worker of the job the JSON values of all.
    timeout : float
        Seconds.

    Returns
    -------
    dict of int to socket.socket
        By place.

    Raises
    ------
    JobError
        A connection does not come about.
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


def join_host(collective: Collective, client: Optional[Client], leaders: List[int], addresses: List[str],
              timeout: float, on_failure: Callable[[BaseException], None]) -> Union[Direct, Leader, Follower]:
    """Bring a worker together with the others of its host, and leaders with each other (collective).

    Parameters
    ----------
    collective : Collective
        Gets its way of summing, where hosts have several workers.
    client : Client or None
        Of this worker, if it has one.
    leaders : list of int
        See :func:`find_leaders`.
    addresses : list of str
        Of each worker's host.
    timeout : float
        Seconds to wait for the others.
    on_failure : callable
        Called with an exception that ends aggregation.

    Returns
    -------
    Direct, Leader or Follower
        This worker's way to the servers.
    """
    rank, leader = collective.rank, leaders[collective.rank]
    if len(set(leaders)) == len(leaders):
        # Horovod's ring needs less of the CPU then: 10 % of a step with 8 hosts at 1 Gbit/s.
        assert client is not None
        return Direct(client)
    peers = connect_host(rank, leaders, ['rows', 'sums'],
                         lambda name: collective.exchange(name, 'mxhybrid.listeners'), timeout)
    places = sorted(set(leaders))
    sockets = meet(places.index(rank) if leader == rank else None, addresses[rank],
                   lambda value: collective.exchange(value, 'mxhybrid.leaders'), timeout)
    if leader != rank:
        collective.reduction = FollowerReduction(peers['sums'], on_failure, timeout)
        # If the leader dies, the job monitor has the cause; a moment for it to say so and end this process.
        return Follower(peers['rows'][leader], client, lambda: time.sleep(ECHO_DELAY_S))
    assert client is not None
    mesh = Mesh(places.index(rank), sockets, on_failure) if sockets else None
    collective.reduction = LeaderReduction(peers['sums'], on_failure, timeout, mesh)
    return Leader(client, peers['rows'], on_failure) if peers['rows'] else Direct(client)
