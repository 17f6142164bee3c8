"""Bind the workers of a host to cores of their own, for the setting ``bind_to_cores``.

Without it, the system moves the threads of all workers between all cores.  A worker whose threads wait for a core
delays all other workers, and data in the caches of the former core are lost.

The processes that a script forks, such as data loaders, may use all cores again.
"""
import contextlib
import os
from typing import Collection, Dict, FrozenSet, List, Optional, Sequence, Set, Tuple

from ..base import log, proc
from ..base.errors import SettingError
from ..base.settings import variable
from ..comm.collective import Collective
from ..comm.topology import Topology

logger = log.get_logger(__name__)

_TOPOLOGY = '/sys/devices/system/cpu/cpu%d/topology/%s'


def bind_to_cores(topology: Topology, collective: Collective) -> None:
    """Bind this worker to its share of the cores of its host (collective).

    Raises
    ------
    SettingError
        A host has fewer cores than workers, or its workers may use different cores, of which some are common; on all
        workers.
    """
    allowed = os.sched_getaffinity(0)
    # Containers of one machine are several hosts, but share its cores.
    everyone = collective.allgather_json([proc.boot_id(), in_order(allowed)], 'mxhybrid.cores')
    machines, cores_by_rank = zip(*everyone)
    own_cores = shares_of(topology.hosts, machines, cores_by_rank)[topology.rank]
    if own_cores is None:
        return
    _bind(own_cores)
    os.register_at_fork(after_in_child=lambda: _bind(allowed))
    logger.debug('bound to the cores %s', _text(own_cores))


def shares_of(hosts: Sequence[str], machines: Sequence[str], cores_by_rank: Sequence[Sequence[int]]
              ) -> List[Optional[List[int]]]:
    """Return, by rank, the cores to which a worker binds itself; None if it has a machine for itself, or its launcher
    has bound it already.

    Parameters
    ----------
    hosts, machines : sequence of str
        By rank: the name of the host, and a text that is equal for the workers of a machine.
    cores_by_rank : sequence of list of int
        By rank: the cores that the worker may use, with neighbours side by side.
    """
    shares: List[Optional[List[int]]] = [None] * len(machines)
    ranks_of: Dict[str, List[int]] = {}
    for rank, machine in enumerate(machines):
        ranks_of.setdefault(machine, []).append(rank)
    for ranks in ranks_of.values():
        cores, allowed = cores_by_rank[ranks[0]], [frozenset(cores_by_rank[rank]) for rank in ranks]
        if len(ranks) == 1:
            continue
        if len(set(allowed)) > 1:
            _check_disjoint(ranks, hosts, allowed)
            continue
        if len(cores) < len(ranks):
            raise SettingError('%s=1: host %s has %s for %d workers, and each of them needs a core of its own: start '
                               'fewer workers on it, or leave the setting out' % (
                                   variable('bind_to_cores'), hosts[ranks[0]],
                                   '1 core' if len(cores) == 1 else '%d cores' % len(cores), len(ranks)))
        for number, rank in enumerate(ranks):
            begin, end = (bound * len(cores) // len(ranks) for bound in (number, number + 1))
            shares[rank] = list(cores[begin:end])
    return shares


def _check_disjoint(ranks: Sequence[int], hosts: Sequence[str], allowed: Sequence[FrozenSet[int]]) -> None:
    """Raise SettingError if workers that their launcher has bound to different cores have a core in common."""
    for number, cores in enumerate(allowed):
        for other, other_cores in enumerate(allowed[:number]):
            if cores & other_cores:
                raise SettingError('%s=1: on host %s, worker %d may use the cores %s and worker %d the cores %s: let '
                                   'the launcher bind them to the same cores, to different ones or to none, or leave '
                                   'the setting out' % (variable('bind_to_cores'), hosts[ranks[0]], ranks[other],
                                                        _text(other_cores), ranks[number], _text(cores)))


def in_order(cores: Collection[int]) -> List[int]:
    """Return cores with neighbours side by side: by processor, then by the physical core, of which hyperthreads share
    one.
    """
    return sorted(cores, key=_position)


def _position(core: int) -> Tuple[int, int, int]:
    return _number(core, 'physical_package_id'), _number(core, 'core_id'), core


def _number(core: int, name: str) -> int:
    try:
        with open(_TOPOLOGY % (core, name)) as file:
            return int(file.read())
    except (OSError, ValueError):  # hidden from a container
        return 0


def _bind(cores: Collection[int]) -> None:
    """Let all threads of this process run on some cores only; later threads inherit that from the calling one."""
    bound: Set[int] = set()
    while True:
        threads = set(map(int, os.listdir('/proc/self/task'))) - bound
        if not threads:
            return
        for thread in threads:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cores)
        bound |= threads


def _text(cores: Collection[int]) -> str:
    return ', '.join(map(str, sorted(cores)))
