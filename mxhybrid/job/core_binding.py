"""Bind the workers of a machine to cores of their own, for the setting ``bind_to_cores``.

Otherwise the system moves the threads of all workers between all cores.  A worker whose threads wait for a core
delays all other workers, and data in the caches of the former core are lost.

The processes that a script forks, such as data loaders, may use all cores again.
"""
import contextlib
import os
from typing import Collection, Dict, FrozenSet, List, Optional, Sequence, Set

from ..base import log, proc
from ..base.errors import SettingError
from ..base.machine import openmp_threads
from ..base.settings import variable
from ..comm.collective import Collective
from ..comm.topology import Topology

logger = log.get_logger(__name__)

_TOPOLOGY = '/sys/devices/system/cpu/cpu%d/topology/%s'


def bind_to_cores(topology: Topology, collective: Collective, only_if_filled: bool) -> None:
    """Bind this worker to its share of the cores of its machine (collective).

    With `only_if_filled`, bind only the workers of machines that they fill, see :func:`_fills`.  Otherwise raise
    SettingError on all workers if the cores of a machine cannot be divided equally among its workers, or its workers
    may use different cores, of which some are common.
    """
    allowed = os.sched_getaffinity(0)
    # Containers of one machine are several hosts, but share its cores.
    everyone = collective.allgather_json([proc.boot_id(), in_order(allowed), openmp_threads()], 'mxhybrid.cores')
    machines, cores_by_rank, threads = zip(*everyone)
    own_cores = shares_of(topology.hosts, machines, cores_by_rank,
                          threads if only_if_filled else None)[topology.rank]
    if own_cores is None:
        return
    _bind(own_cores)
    os.register_at_fork(after_in_child=lambda: _bind(allowed))
    logger.debug('bound to %s', _text(own_cores))


def _fills(cores: Sequence[int], threads: Sequence[Optional[int]]) -> bool:
    """Return whether workers that share `cores` have a thread for each core, and all equally many.

    `threads` are those of each worker's operators, None if OMP_NUM_THREADS is not set.
    """
    return threads[0] is not None and len(set(threads)) == 1 and len(threads) * threads[0] == len(cores)


def shares_of(hosts: Sequence[str], machines: Sequence[str], cores_by_rank: Sequence[Sequence[int]],
              threads: Optional[Sequence[Optional[int]]] = None) -> List[Optional[List[int]]]:
    """Return, by rank, the cores to which a worker binds itself; None if it has a machine for itself, or its launcher
    has bound it already.

    Workers share a core if there are several times as many workers as cores.

    - `hosts`, `machines`: by rank: the name of the host, and a text that is equal for the workers of a machine.
    - `cores_by_rank`: by rank: the cores that the worker may use, with neighbours side by side.
    - `threads`: by rank: the threads of operators; then None is returned for workers that do not fill their machine,
      too.
    """
    shares: List[Optional[List[int]]] = [None] * len(machines)
    ranks_of: Dict[str, List[int]] = {}
    for rank, machine in enumerate(machines):
        ranks_of.setdefault(machine, []).append(rank)
    for ranks in ranks_of.values():
        cores, allowed = cores_by_rank[ranks[0]], [frozenset(cores_by_rank[rank]) for rank in ranks]
        if len(ranks) == 1:
            continue
        if threads is not None and (len(set(allowed)) > 1 or not _fills(cores, [threads[rank] for rank in ranks])):
            continue
        if len(set(allowed)) > 1:
            _check_disjoint(ranks, hosts, allowed)
            continue
        if len(cores) < len(ranks) and len(ranks) % len(cores):
            fewer = len(ranks) // len(cores) * len(cores)
            raise SettingError('%s=1: host %s has %d cores for %d workers, which cannot share them equally: start %d '
                               'or %d workers on it, or set it to 0' % (
                                   variable('bind_to_cores'), hosts[ranks[0]], len(cores), len(ranks), fewer,
                                   fewer + len(cores)))
        for number, rank in enumerate(ranks):
            begin, end = (bound * len(cores) // len(ranks) for bound in (number, number + 1))
            shares[rank] = list(cores[begin:max(end, begin + 1)])
    return shares


def _check_disjoint(ranks: Sequence[int], hosts: Sequence[str], allowed: Sequence[FrozenSet[int]]) -> None:
    """Raise SettingError if workers that their launcher has bound to different cores have a core in common."""
    for number, cores in enumerate(allowed):
        for other, other_cores in enumerate(allowed[:number]):
            if cores & other_cores:
                raise SettingError('%s=1: on host %s, worker %d may use %s and worker %d %s: let the launcher bind '
                                   'them to the same cores, to different ones or to none, or set it to 0' % (
                                       variable('bind_to_cores'), hosts[ranks[0]], ranks[other], _text(other_cores),
                                       ranks[number], _text(cores)))


def in_order(cores: Collection[int]) -> List[int]:
    """Return cores with neighbours side by side: by processor, then by the physical core that hyperthreads share."""
    return sorted(cores, key=lambda core: (_number(core, 'physical_package_id'), _number(core, 'core_id'), core))


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
    return 'core%s %s' % ('s' * (len(cores) > 1), ', '.join(map(str, sorted(cores))))
