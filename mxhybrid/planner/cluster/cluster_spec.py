"""What a plan runs on: hosts, ranks, links, and what each kind of transfer takes there; a file in JSON.

``mxhybrid calibrate`` measures it on the cluster that will train.  For hardware that is not there it is written by
hand, with ``"measured": null``; docs/planner.md has all keys.
"""
import dataclasses
import hashlib
import json
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ...base.errors import InputError
from ...base.files import write_atomically
from ..simulator.token_bucket import TokenBucket

FORMAT = 'mxhybrid.cluster 1'

#: Ranks in all: more are a slip of the pen, and would take all memory.
MOST_RANKS = 1 << 14
#: Of any number: sums and products of larger ones are none.
_MOST = 1e30


@dataclasses.dataclass(frozen=True)
class Host:
    """A host, and the ranks on it.

    Attributes
    ----------
    name : str
    ranks : int
    cores : float
        That its ranks share; less than one is a share of a core.
    burst_s : float
        Seconds of a core that may be saved while idle, where it is a share by quota.
    speed : float
        How fast a core computes, all others busy, beside the one of the cluster's reference, or else the one that
        operators were profiled on.
    memory_bytes : int or None
        Of the host; None where it is not known.
    speeds : tuple of float
        The same by the number of cores that are busy: one, two and so on, the last for all of them.  Empty where that
        makes no difference.
    """

    name: str
    ranks: int
    cores: float
    burst_s: float = 0.0
    speed: float = 1.0
    memory_bytes: Optional[int] = None
    speeds: Tuple[float, ...] = ()

    def speeds_of(self, count: int) -> List[float]:
        """Return the speeds of a core while one, two, and so on up to `count` of them are busy."""
        found = list(self.speeds[:count]) or [self.speed]
        return found + [found[-1]] * (count - len(found))


@dataclasses.dataclass(frozen=True)
class TransferCost:
    """What a transfer takes beside links: ``fixed_s + per_item_s * items + per_byte_s * bytes`` seconds of a rank's
    core, and `latency_s` in which nobody computes.
    """

    fixed_s: float
    per_item_s: float
    per_byte_s: float
    latency_s: float = 0.0

    def seconds(self, items: int, size: float) -> float:
        """Of a rank's core."""
        return self.fixed_s + self.per_item_s * items + self.per_byte_s * size


#: Pieces of work whose seconds are a machine's reference.
PIECES = ('dense', 'convolution', 'memory')
#: Kinds of transfers, and what their items and bytes are.
KINDS = {
    'exchange': 'one direction of a redistribution: messages sent and received, and their bytes',
    'sum': 'a sum of dense gradients over all ranks, up to 2 MB of them together: ranks, bytes of the gradients',
    'group_sum': 'each of the two exchanges of a sum over some ranks: messages sent and received, and their bytes',
    'push': 'rows pushed to servers: partitions, bytes of rows',
    'pull': 'rows that any worker has touched, and the exchange of their row ids: partitions, bytes of rows',
    'update': 'an update of weights in a worker: parameters, bytes of weights',
    'row_sum': 'rows of a table summed over all ranks by allreduce: ranks, bytes of the whole table',
    'step': 'the remaining time of a step: parameters, no bytes',
    'horovod_sum': 'a sum of dense gradients over all ranks by Horovod: parameters, bytes of the gradients',
    'horovod_row_sum': 'rows of a table summed by Horovod: ranks, bytes of the whole table',
    'horovod_step': 'the remaining time of a step with such sums: parameters, no bytes',
}
#: Kinds that take the place of others where Horovod makes the sums; a file has all of them, or none.
BY_HOROVOD = {'sum': 'horovod_sum', 'row_sum': 'horovod_row_sum', 'step': 'horovod_step'}
#: What files of clusters that were measured before may lack; it is as a sum then.
_OPTIONAL = {'row_sum', *BY_HOROVOD.values()}


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Hosts and what joins them.  Ranks are numbered host by host.

    Attributes
    ----------
    hosts : tuple of Host
    link : TokenBucket
        Of each host in each direction, bytes of payload.
    link_latency_s : float
        Until the first byte of a message is on another host.
    memory : TokenBucket
        Between ranks of a host, bytes.
    memory_latency_s : float
    costs : dict of str to TransferCost
        By kind, see :data:`KINDS`.
    measured : str or None
        When and how it was measured; None if a person wrote it.
    reference : tuple of float or None
        Seconds of the kernels of :class:`.KernelTimes` on the core that speeds are beside; None where it is
        the one that operators were profiled on.
    """

    hosts: Tuple[Host, ...]
    link: TokenBucket
    link_latency_s: float
    memory: TokenBucket
    memory_latency_s: float
    costs: Mapping[str, TransferCost]
    measured: Optional[str] = None
    reference: Optional[Tuple[float, float, float]] = None

    @property
    def sums(self) -> Tuple[str, ...]:
        """What may sum dense weights, as plans say it, where the costs of both are known; else nothing."""
        return ('lane', 'horovod') if BY_HOROVOD['sum'] in self.costs else ()

    def cost(self, kind: str, dense: Optional[str] = None) -> TransferCost:
        """Of a kind, where `dense` says what sums dense weights, if the costs of both are known."""
        if dense == 'horovod' and self.sums:
            kind = BY_HOROVOD.get(kind, kind)
        return self.costs.get(kind, self.costs['sum'])

    def sum_items(self, parameters: int, dense: Optional[str] = None) -> int:
        """Items of a sum of the gradients of so many parameters."""
        return parameters if dense == 'horovod' and self.sums else self.ranks

    @property
    def ranks(self) -> int:
        """How many there are in all."""
        return sum(host.ranks for host in self.hosts)

    @property
    def rank_memory(self) -> Optional[float]:
        """Bytes that every rank may fill: the least that one has of its host; None where that is not known of any."""
        return min((host.memory_bytes / host.ranks for host in self.hosts if host.memory_bytes is not None),
                   default=None)

    def host_of(self, rank: int) -> int:
        """The number of a rank's host."""
        for number, host in enumerate(self.hosts):
            if rank < host.ranks:
                return number
            rank -= host.ranks
        raise IndexError(rank)

    def digest(self) -> str:
        """Tells clusters apart."""
        return hashlib.sha256(json.dumps(self.as_json(), sort_keys=True).encode()).hexdigest()[:16]

    def as_json(self) -> Dict[str, Any]:
        """What :func:`cluster_from_json` reads."""
        reference = {} if self.reference is None else {'reference': dict(zip(PIECES, self.reference))}
        return {'format': FORMAT, 'measured': self.measured, **reference,
                'hosts': [_host_as_json(host) for host in self.hosts],
                'link': dict(dataclasses.asdict(self.link), latency_s=self.link_latency_s),
                'memory': dict(dataclasses.asdict(self.memory), latency_s=self.memory_latency_s),
                'costs': {kind: dataclasses.asdict(cost) for kind, cost in self.costs.items()}}


def _host_as_json(host: Host) -> Dict[str, Any]:
    found = dataclasses.asdict(host)
    speeds = list(found.pop('speeds'))
    return dict(found, speeds=speeds) if speeds else found


def save(path: str, cluster: Cluster) -> None:
    """Write a cluster file."""
    write_atomically(path, (json.dumps(cluster.as_json(), indent=1) + '\n').encode())


def load(path: str) -> Cluster:
    """Read a cluster file; InputError where it cannot be read or says something impossible."""
    try:
        with open(path, encoding='utf-8') as file:
            value = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError('cluster: cannot read %s: %s' % (path, error)) from error
    try:
        return cluster_from_json(value)
    except InputError as error:
        raise InputError('%s: %s' % (path, error)) from error


def cluster_from_json(value: Any) -> Cluster:
    """The cluster that :meth:`Cluster.as_json` wrote; InputError for anything else."""
    if not isinstance(value, dict) or value.get('format') != FORMAT:
        raise InputError('cluster: no format %r: it is no cluster file of this version' % FORMAT)
    _known('', value, {'format', 'measured', 'reference', 'hosts', 'link', 'memory', 'costs'})
    given = value.get('hosts')
    if not isinstance(given, list) or not given:
        raise InputError('cluster: hosts=%r: give a list of at least one' % (given,))
    hosts = tuple(_host(at, one) for at, one in enumerate(given))
    ranks = sum(host.ranks for host in hosts)
    if ranks > MOST_RANKS:
        raise InputError('cluster: hosts[].ranks: %d in all: give at most %d' % (ranks, MOST_RANKS))
    costs = value.get('costs')
    if not isinstance(costs, dict):
        raise InputError('cluster: costs=%r: give an object' % (costs,))
    missing = sorted(set(KINDS) - _OPTIONAL - set(costs))
    if missing:
        raise InputError('cluster: costs: there is no %s: give all of %s' % (
            missing[0], ', '.join(sorted(set(KINDS) - _OPTIONAL))))
    _known('costs', costs, KINDS)
    both = [kind for kind in BY_HOROVOD.values() if kind in costs]
    if both and len(both) < len(BY_HOROVOD):
        raise InputError('cluster: costs: there is %s: give all of %s, or none'
                         % (both[0], ', '.join(sorted(BY_HOROVOD.values()))))
    link, link_latency = _way('link', value.get('link'))
    memory, memory_latency = _way('memory', value.get('memory'))
    return Cluster(hosts, link, link_latency, memory, memory_latency,
                   {kind: _cost('costs.' + kind, one) for kind, one in costs.items()},
                   None if value.get('measured') is None else str(value['measured']),
                   _reference(value.get('reference')))


def _reference(value: Any) -> Optional[Tuple[float, float, float]]:
    if value is None:
        return None
    numbers = _numbers('reference', value, PIECES, {})
    for key, one in numbers.items():
        if one <= 0:
            raise InputError('cluster: reference.%s=%r: give seconds, more than 0' % (key, one))
    return numbers['dense'], numbers['convolution'], numbers['memory']


def _host(at: int, value: Any) -> Host:
    where = 'hosts[%d]' % at
    if not isinstance(value, dict):
        raise InputError('cluster: %s=%r: give an object' % (where, value))
    others = ('name', 'ranks', 'memory_bytes', 'speeds')
    _known(where, value, {*others, 'cores', 'burst_s', 'speed'})
    rest = {key: one for key, one in value.items() if key not in others}
    speeds = _speeds(where, value.get('speeds', []))
    numbers = _numbers(where, rest, ('cores',), {'burst_s': 0.0, 'speed': speeds[-1] if speeds else 1.0})
    name, ranks, memory = value.get('name', 'host%d' % at), value.get('ranks'), value.get('memory_bytes')
    if not isinstance(name, str):
        raise InputError('cluster: %s.name=%r: give a text, or leave it out' % (where, name))
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
        raise InputError('cluster: %s.ranks=%r: give a whole number of at least 1' % (where, ranks))
    if memory is not None and (not isinstance(memory, int) or isinstance(memory, bool) or not 1 <= memory <= _MOST):
        raise InputError('cluster: %s.memory_bytes=%r: give a whole number, or null' % (where, memory))
    for key in ('cores', 'speed'):
        if numbers[key] <= 0:
            raise InputError('cluster: %s.%s=%r: give more than 0' % (where, key, numbers[key]))
    if speeds and speeds[-1] != numbers['speed']:
        raise InputError('cluster: %s.speed=%r: give the last one of speeds, %r, or leave it out'
                         % (where, numbers['speed'], speeds[-1]))
    return Host(name, ranks, memory_bytes=memory, speeds=speeds, **numbers)


def _speeds(where: str, value: Any) -> Tuple[float, ...]:
    """Return a core's speeds by the number of busy cores."""
    if not isinstance(value, list) or not all(
            isinstance(one, (int, float)) and not isinstance(one, bool) and 0 < one <= _MOST for one in value):
        raise InputError('cluster: %s.speeds=%r: give a list of numbers above 0' % (where, value))
    if any(more > less for less, more in zip(value, value[1:])):
        raise InputError('cluster: %s.speeds=%r: give numbers that do not grow: the more cores are busy, the slower '
                         'each of them is' % (where, value))
    return tuple(map(float, value))


def _cost(where: str, value: Any) -> TransferCost:
    return TransferCost(**_numbers(where, value, ('fixed_s', 'per_item_s', 'per_byte_s'), {'latency_s': 0.0}))


def _way(where: str, value: Any) -> Tuple[TokenBucket, float]:
    numbers = _numbers(where, value, ('rate',), {'peak': 0.0, 'burst': 0.0, 'latency_s': 0.0})
    latency = numbers.pop('latency_s')
    if numbers['rate'] <= 0:
        raise InputError('cluster: %s.rate=%r: give bytes a second, more than 0' % (where, numbers['rate']))
    if numbers['burst'] > 0 and numbers['peak'] <= numbers['rate']:
        raise InputError('cluster: %s.burst=%r: give a peak above the rate with it, not %r'
                         % (where, numbers['burst'], numbers['peak']))
    return TokenBucket(**numbers), latency


def _numbers(where: str, value: Any, needed: Tuple[str, ...], others: Dict[str, float]) -> Dict[str, float]:
    if not isinstance(value, dict):
        raise InputError('cluster: %s=%r: give an object' % (where, value))
    _known(where, value, set(needed) | set(others))
    found = {}
    for key in list(needed) + list(others):
        one = value.get(key, others.get(key))
        # Whole numbers may be too large to be a float.
        if not isinstance(one, (int, float)) or isinstance(one, bool) or not 0 <= one <= _MOST:
            raise InputError('cluster: %s.%s=%r: give a number of at least 0, and at most %g'
                             % (where, key, one, _MOST))
        found[key] = float(one)
    return found


def _known(where: str, value: Mapping[str, Any], known: Any) -> None:
    unknown: List[str] = sorted(set(value) - set(known))
    if unknown:
        raise InputError('cluster: %s%s is no key: take it out; there are %s'
                         % (where + '.' if where else '', unknown[0], ', '.join(sorted(known))))
