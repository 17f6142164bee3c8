"""Cores and memory that hosts have for their ranks: CPU affinity, quotas of cgroups, hosts that share one machine."""
import os
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from ...base.errors import InputError
from ...base.machine import total_bytes
from ..cluster.cluster_spec import Host

#: Names under which the CPU controllers of cgroups version 1 may be mounted.
_VERSION_1 = ('cpu', 'cpu,cpuacct', 'cpuacct,cpu')
#: Seconds for which a thread computes to see how much CPU time it gets.
_SPIN_S = 0.5
#: If ranks get less than this share of the cores that they may use, there is a hidden quota; a little less may also be
#: due to other programs.
_HIDDEN_QUOTA_SHARE = 0.9


def local_resources(root: str = '/') -> Dict[str, Any]:
    """Return the resources that this process sees, as JSON; `root` has /proc and /sys.

    ``quota``, if there is one, has the group that it belongs to, the number of cores, and the seconds of a core that
    may be used at once.  ``hidden`` is true if the groups cannot be seen, for example in a namespace without a mount of
    them.
    """
    with open(os.path.join(root, 'proc/sys/kernel/random/boot_id')) as file:
        boot = file.read().strip()
    return {'boot': boot, 'cpus': sorted(os.sched_getaffinity(0)), 'quota': quota(root), 'memory': total_bytes(root),
            'hidden': not any(os.path.exists(os.path.join(folder, 'cgroup.procs')) for folder, _ in _groups(root))}


def core_share() -> float:
    """Compute for half a second, and return the share of a core that the thread got."""
    began, cpu_s = time.monotonic(), time.thread_time()
    while time.monotonic() < began + _SPIN_S:
        pass
    return (time.thread_time() - cpu_s) / (time.monotonic() - began)


def quota(root: str = '/') -> Optional[List[Any]]:
    """Return the tightest quota of this process: its group, cores, and seconds of a core that may be used at once."""
    quotas: List[List[Any]] = []
    for folder, group in _groups(root):
        limit = _limit(folder)
        if limit is not None:
            quotas.append([group, limit[0], limit[1]])
    return min(quotas, key=lambda entry: entry[1]) if quotas else None


def _groups(root: str) -> Iterator[Tuple[str, str]]:
    """Yield the groups that this process is in, up to the outermost one: folder and name."""
    with open(os.path.join(root, 'proc/self/cgroup')) as lines:
        entries = [line.rstrip('\n').split(':', 2) for line in lines]
    base = os.path.join(root, 'sys/fs/cgroup')
    for _, controllers, path in entries:
        mounts = [os.path.join(base, name) for name in _VERSION_1] if 'cpu' in controllers.split(',') else [
            base, os.path.join(base, 'unified')] if not controllers else []
        for mount in mounts:
            # In a container the outer parts of the path may be missing: then its own group is mounted at the top.
            group = path if os.path.isdir(mount + path) else '/'
            while os.path.isdir(mount):
                yield mount + group, controllers + ':' + group
                if group == '/':
                    break
                group = os.path.dirname(group)


def _limit(folder: str) -> Optional[Tuple[float, float]]:
    """Return the cores of a group, and the seconds that may be used at once; None if it has no quota."""
    try:
        numbers = _words(folder, 'cpu.max')
        burst = _words(folder, 'cpu.max.burst') or ['0']
        if not numbers:
            numbers = _words(folder, 'cpu.cfs_quota_us') + _words(folder, 'cpu.cfs_period_us')
            burst = _words(folder, 'cpu.cfs_burst_us') or ['0']
        allowed, period = (int(number) for number in numbers)
        return (allowed / period, (allowed + int(burst[0])) * 1e-6) if allowed > 0 else None
    except ValueError:  # 'max', or no such file
        return None


def _words(folder: str, name: str) -> List[str]:
    try:
        with open(os.path.join(folder, name)) as file:
            return file.read().split()
    except OSError:
        return []


def hosts_of(places: Sequence[str], names: Sequence[str], resources: Sequence[Dict[str, Any]],
             shares: Sequence[float]) -> List[Host]:
    """Return the hosts of a job from the findings of its ranks.

    Hosts that are one machine, as emulated ones are, get equal shares of each processor that several of them may use,
    of a common quota, and of the memory.

    - `places`, `names`: by rank: the host that it is on, and the name of this host.
    - `resources`: by rank, what :func:`local_resources` returns.
    - `shares`: by rank: the share of a core that it gets while all ranks compute.  It counts where quotas are hidden.

    Raises InputError if workers are not numbered host by host.
    """
    ranks_of = {host: [rank for rank, other in enumerate(places) if other == host] for host in dict.fromkeys(places)}
    for ranks in ranks_of.values():
        if ranks != list(range(ranks[0], ranks[0] + len(ranks))):
            raise InputError('calibrate: workers %s are on host %s: plans need workers that are numbered host by host: '
                             'start them so, as horovodrun -H does' % (', '.join(map(str, ranks)), names[ranks[0]]))
    cpus = {host: {(resources[rank]['boot'], cpu) for rank in ranks for cpu in resources[rank]['cpus']}
            for host, ranks in ranks_of.items()}
    quotas = {host: {(resources[rank]['boot'], resources[rank]['quota'][0]): resources[rank]['quota'][1:]
                      for rank in ranks if resources[rank]['quota']} for host, ranks in ranks_of.items()}
    boots = {host: resources[ranks[0]]['boot'] for host, ranks in ranks_of.items()}
    hosts = []
    for host, ranks in ranks_of.items():
        cores = sum(1 / sum(cpu in other_cpus for other_cpus in cpus.values()) for cpu in cpus[host])
        burst = 0.0
        if all(resources[rank]['quota'] for rank in ranks):
            limits = [[number / sum(group in other_quotas for other_quotas in quotas.values()) for number in limit]
                      for group, limit in quotas[host].items()]
            allowed = sum(limit[0] for limit in limits)
            if allowed < cores:
                cores, burst = allowed, sum(limit[1] for limit in limits)
        received = sum(shares[rank] for rank in ranks)
        if any(resources[rank]['hidden'] for rank in ranks) and \
                received < _HIDDEN_QUOTA_SHARE * min(cores, len(ranks)):
            cores, burst = received, 0.0
        memory = min(resources[rank]['memory'] for rank in ranks) // list(boots.values()).count(boots[host])
        hosts.append(Host(names[ranks[0]], len(ranks), cores, burst, memory_bytes=memory))
    return hosts
