"""The specification of a cluster, a file in JSON: hosts, ranks, links, and the cost of each kind of transfer.

``mxhybrid calibrate`` measures it on the cluster that will train.  For hardware that is not at hand, write it yourself,
with ``"measured": null``; docs/planner.md describes all keys.
"""
import dataclasses
import hashlib
import json
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ...base import json_text
from ...base.errors import InputError
from ...base.files import write_atomically
from ..simulator.resource_groups import TokenBucket

FORMAT = 'mxhybrid.cluster 1'

#: The largest number of ranks: more would be a mistake in the file, and would take all memory.
MAX_RANKS = 1 << 14
#: The largest number of any key: sums and products of larger ones may overflow.
_MAX_NUMBER = 1e30


@dataclasses.dataclass(frozen=True)
class Host:
    """A host, and the ranks on it.

    Attributes
    ----------
    name : str
    ranks : int
    cores : float
        The cores that its ranks share; less than one is a share of a core.
    burst_s : float
        Seconds of a core that it may save while idle, where `cores` is a quota.
    speed : float
        The speed of a core while all other cores compute, relative to the reference core of the cluster, or else to
        the core that operators were profiled on.
    memory_bytes : int or None
        The memory of the host; None where it is not known.
    speeds : tuple of float
        The speed of a core by the number of cores that compute: one, two and so on, the last for all of them.  Empty
        where their number makes no difference.
    memory_speeds : tuple of float
        The same for work that is bound by memory; then `speeds` are those for arithmetic.  Empty where they are equal.
    """

    name: str
    ranks: int
    cores: float
    burst_s: float = 0.0
    speed: float = 1.0
    memory_bytes: Optional[int] = None
    speeds: Tuple[float, ...] = ()
    memory_speeds: Tuple[float, ...] = ()

    def speeds_of(self, count: int, memory: bool = False) -> List[float]:
        """Return the speeds of a core while 1 to `count` of them are busy, for arithmetic or memory-bound work."""
        speeds = list(((memory and self.memory_speeds) or self.speeds)[:count]) or [self.speed]
        return speeds + [speeds[-1]] * (count - len(speeds))


@dataclasses.dataclass(frozen=True)
class TransferCost:
    """The cost of a transfer in addition to the time on links: ``fixed_s + per_item_s * items + per_byte_s * bytes``
    seconds of a rank's core, and a latency, `latency_s`, in which no core computes.
    """

    fixed_s: float
    per_item_s: float
    per_byte_s: float
    latency_s: float = 0.0

    def seconds(self, items: int, size_bytes: float) -> float:
        """Return the seconds of a rank's core."""
        return self.fixed_s + self.per_item_s * items + self.per_byte_s * size_bytes


#: The pieces of work whose seconds are the reference of a machine.
PIECES = ('dense', 'convolution', 'memory')
#: The kinds of transfers that have a cost, with the meaning of their items and bytes.
COST_KINDS = {
    'redistribution': 'a redistribution in one direction: messages sent and received, and their bytes',
    'sum': 'a sum of dense gradients over all ranks, up to 2 MB of them together: ranks, bytes of the gradients',
    'group_sum': 'each half of a sum over some ranks, its reduce-scatter or its allgather: messages sent and received, '
                 'and their bytes',
    'push': 'rows pushed to servers: partitions, bytes of rows',
    'pull': 'rows that any worker has touched, and the exchange of their row ids: partitions, bytes of rows',
    'update': 'an update of weights in a worker: parameters, bytes of weights',
    'row_sum': 'rows of a table summed over all ranks by allreduce: ranks, bytes of the whole table',
    'step': 'the remaining time of a step: parameters, no bytes',
}


@dataclasses.dataclass(frozen=True)
class Cluster:
    """A cluster: hosts and the links between them.  Ranks are numbered host by host.

    Attributes
    ----------
    hosts : tuple of Host
    link : TokenBucket
        The link of each host in each direction, in bytes of payload.
    link_latency_s : float
        The time until the first byte of a message is on another host.
    memory : TokenBucket
        The memory between ranks of a host, in bytes.
    memory_latency_s : float
    costs : dict of str to TransferCost
        By kind, see :data:`COST_KINDS`.
    measured : str or None
        When and how it was measured; None for a file that a person wrote.
    reference : tuple of float or None
        Seconds of the kernels of :class:`.KernelTimes` on the reference core, which speeds are relative to;
        None where that is the core that operators were profiled on.
    busy : str
        What other programs did while it was measured, so that all times are too long; empty if they did little.
    """

    hosts: Tuple[Host, ...]
    link: TokenBucket
    link_latency_s: float
    memory: TokenBucket
    memory_latency_s: float
    costs: Mapping[str, TransferCost]
    measured: Optional[str] = None
    reference: Optional[Tuple[float, float, float]] = None
    busy: str = ''

    @property
    def warning(self) -> str:
        """A warning about predictions for the cluster, if it was measured on a busy machine; otherwise empty."""
        return ('the cluster was measured on a busy machine: %s: the predictions may be wrong: calibrate again when '
                'nothing else runs' % self.busy if self.busy else '')

    @property
    def ranks(self) -> int:
        """The number of ranks on all hosts."""
        return sum(host.ranks for host in self.hosts)

    @property
    def rank_memory(self) -> Optional[float]:
        """The bytes that every rank may use: the smallest share of a host's memory; None if no memory is known."""
        return min((host.memory_bytes / host.ranks for host in self.hosts if host.memory_bytes is not None),
                   default=None)

    def digest(self) -> str:
        """Return a short hash that tells clusters apart."""
        return hashlib.sha256(json.dumps(self.as_json(), sort_keys=True).encode()).hexdigest()[:16]

    def as_json(self) -> Dict[str, Any]:
        """Return the object that :func:`cluster_from_json` reads."""
        reference = {} if self.reference is None else {'reference': dict(zip(PIECES, self.reference))}
        busy = {'busy': self.busy} if self.busy else {}
        return {'format': FORMAT, 'measured': self.measured, **busy, **reference,
                'hosts': [_host_as_json(host) for host in self.hosts],
                'link': dict(dataclasses.asdict(self.link), latency_s=self.link_latency_s),
                'memory': dict(dataclasses.asdict(self.memory), latency_s=self.memory_latency_s),
                'costs': {kind: dataclasses.asdict(cost) for kind, cost in self.costs.items()}}


def _host_as_json(host: Host) -> Dict[str, Any]:
    value = dataclasses.asdict(host)
    for name in ('speeds', 'memory_speeds'):
        speeds = list(value.pop(name))
        if speeds:
            value[name] = speeds
    return value


def save(path: str, cluster: Cluster) -> None:
    """Write a cluster file."""
    write_atomically(path, (json.dumps(cluster.as_json(), indent=1) + '\n').encode())


def load(path: str) -> Cluster:
    """Read a cluster file; InputError where it cannot be read or a value is impossible."""
    try:
        with open(path, encoding='utf-8') as file:
            value = json_text.parse(file.read())
    except (OSError, ValueError) as error:
        raise InputError('cluster: cannot read %s: %s: give a file that mxhybrid calibrate has written'
                         % (path, error)) from error
    try:
        return cluster_from_json(value)
    except InputError as error:
        raise InputError('%s: %s' % (path, error)) from error


def cluster_from_json(value: Any) -> Cluster:
    """Return the cluster that :meth:`Cluster.as_json` wrote; InputError for anything else."""
    if not isinstance(value, dict) or value.get('format') != FORMAT:
        raise InputError('cluster: there is no format %r: this is no cluster file of this version: measure the cluster '
                         'with mxhybrid calibrate' % FORMAT)
    _check_keys('', value, {'format', 'measured', 'busy', 'reference', 'hosts', 'link', 'memory', 'costs'})
    host_values = value.get('hosts')
    if not isinstance(host_values, list) or not host_values:
        raise InputError('cluster: hosts=%r: give a list of at least one host' % (host_values,))
    hosts = tuple(_parse_host(index, host_value) for index, host_value in enumerate(host_values))
    ranks = sum(host.ranks for host in hosts)
    if ranks > MAX_RANKS:
        raise InputError('cluster: hosts[].ranks: %d in all: give at most %d' % (ranks, MAX_RANKS))
    costs = value.get('costs')
    if not isinstance(costs, dict):
        raise InputError('cluster: costs=%r: give an object' % (costs,))
    missing = sorted(set(COST_KINDS) - set(costs))
    if missing:
        raise InputError('cluster: costs: there is no %s: give all of %s' % (
            missing[0], ', '.join(sorted(COST_KINDS))))
    _check_keys('costs', costs, COST_KINDS)
    link, link_latency = _parse_link('link', value.get('link'))
    memory, memory_latency = _parse_link('memory', value.get('memory'))
    return Cluster(hosts, link, link_latency, memory, memory_latency,
                   {kind: _parse_cost('costs.' + kind, cost) for kind, cost in costs.items()},
                   None if value.get('measured') is None else str(value['measured']),
                   _parse_reference(value.get('reference')), str(value.get('busy') or ''))


def _parse_reference(value: Any) -> Optional[Tuple[float, float, float]]:
    if value is None:
        return None
    seconds_of = _parse_numbers('reference', value, PIECES, {})
    for piece, seconds in seconds_of.items():
        if seconds <= 0:
            raise InputError('cluster: reference.%s=%r: give seconds, more than 0' % (piece, seconds))
    return seconds_of['dense'], seconds_of['convolution'], seconds_of['memory']


def _parse_host(index: int, value: Any) -> Host:
    section = 'hosts[%d]' % index
    if not isinstance(value, dict):
        raise InputError('cluster: %s=%r: give an object' % (section, value))
    other_keys = ('name', 'ranks', 'memory_bytes', 'speeds', 'memory_speeds')
    _check_keys(section, value, {*other_keys, 'cores', 'burst_s', 'speed'})
    number_values = {key: number for key, number in value.items() if key not in other_keys}
    speeds = _parse_speeds(section, 'speeds', value.get('speeds', []))
    memory_speeds = _parse_speeds(section, 'memory_speeds', value.get('memory_speeds', []))
    defaults = {'burst_s': 0.0, 'speed': speeds[-1] if speeds else 1.0}
    numbers = _parse_numbers(section, number_values, ('cores',), defaults)
    name, ranks, memory = value.get('name', 'host%d' % index), value.get('ranks'), value.get('memory_bytes')
    if not isinstance(name, str):
        raise InputError('cluster: %s.name=%r: give a text, or leave it out' % (section, name))
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
        raise InputError('cluster: %s.ranks=%r: give a whole number of at least 1' % (section, ranks))
    if memory is not None and (
            not isinstance(memory, int) or isinstance(memory, bool) or not 1 <= memory <= _MAX_NUMBER):
        raise InputError('cluster: %s.memory_bytes=%r: give a whole number, or null' % (section, memory))
    for key in ('cores', 'speed'):
        if numbers[key] <= 0:
            raise InputError('cluster: %s.%s=%r: give more than 0' % (section, key, numbers[key]))
    if speeds and speeds[-1] != numbers['speed']:
        raise InputError('cluster: %s.speed=%r: give the last one of speeds, %r, or leave it out'
                         % (section, numbers['speed'], speeds[-1]))
    if memory_speeds and (len(memory_speeds) != len(speeds) or memory_speeds[0] != speeds[0]):
        raise InputError('cluster: %s.memory_speeds=%r: give as many numbers as speeds has, and the same first one, or '
                         'leave it out' % (section, list(memory_speeds)))
    return Host(name, ranks, memory_bytes=memory, speeds=speeds, memory_speeds=memory_speeds, **numbers)


def _parse_speeds(section: str, name: str, value: Any) -> Tuple[float, ...]:
    """Return the speeds of a core by the number of busy cores."""
    if not isinstance(value, list) or not all(
            isinstance(speed, (int, float)) and not isinstance(speed, bool) and 0 < speed <= _MAX_NUMBER
            for speed in value):
        raise InputError('cluster: %s.%s=%r: give a list of numbers above 0' % (section, name, value))
    if any(later > earlier for earlier, later in zip(value, value[1:])):
        raise InputError('cluster: %s.%s=%r: give numbers that do not grow: the more cores are busy, the slower '
                         'each of them is' % (section, name, value))
    return tuple(map(float, value))


def _parse_cost(section: str, value: Any) -> TransferCost:
    return TransferCost(**_parse_numbers(section, value, ('fixed_s', 'per_item_s', 'per_byte_s'), {'latency_s': 0.0}))


def _parse_link(section: str, value: Any) -> Tuple[TokenBucket, float]:
    """Return the token bucket of a link or of memory, and its latency."""
    numbers = _parse_numbers(section, value, ('rate',), {'peak': 0.0, 'burst': 0.0, 'latency_s': 0.0})
    latency = numbers.pop('latency_s')
    if numbers['rate'] <= 0:
        raise InputError('cluster: %s.rate=%r: give bytes a second, more than 0' % (section, numbers['rate']))
    if numbers['burst'] > 0 and numbers['peak'] <= numbers['rate']:
        raise InputError('cluster: %s.burst=%r: give a peak above the rate with it, not %r'
                         % (section, numbers['burst'], numbers['peak']))
    return TokenBucket(**numbers), latency


def _parse_numbers(section: str, value: Any, required: Tuple[str, ...], defaults: Dict[str, float]) -> Dict[str, float]:
    if not isinstance(value, dict):
        raise InputError('cluster: %s=%r: give an object' % (section, value))
    _check_keys(section, value, set(required) | set(defaults))
    numbers = {}
    for key in list(required) + list(defaults):
        number = value.get(key, defaults.get(key))
        # A whole number may be too large for a float.
        if not isinstance(number, (int, float)) or isinstance(number, bool) or not 0 <= number <= _MAX_NUMBER:
            raise InputError('cluster: %s.%s=%r: give a number of at least 0, and at most %g'
                             % (section, key, number, _MAX_NUMBER))
        numbers[key] = float(number)
    return numbers


def _check_keys(section: str, value: Mapping[str, Any], known: Any) -> None:
    unknown: List[str] = sorted(set(value) - set(known))
    if unknown:
        raise InputError('cluster: %s%s is no key: remove it; the keys are %s'
                         % (section + '.' if section else '', unknown[0], ', '.join(sorted(known))))
