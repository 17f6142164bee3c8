"""What cores and memory hosts have for their ranks: affinity, quotas of cgroups, hosts that share one machine."""
import os
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from ...base.errors import InputError
from ...base.machine import total_bytes
from ..cluster.cluster_spec import Host

#: Where controllers of version 1 may be mounted.
_VERSION_1 = ('cpu', 'cpu,cpuacct', 'cpuacct,cpu')
#: How long a thread computes to see what it gets, in seconds.
_SPIN_S = 0.5
#: What is less than this share of what files tell is a quota, and not something else that runs.
_LESS = 0.9


def local_resources(root: str = '/') -> Dict[str, Any]:
    """What a rank's process sees, as JSON; `root` has /proc and /sys.

    ``quota``, if there is any: the group that has it, cores, and seconds of a core that may be used at once; ``hidden``
    where groups cannot be seen, as in a namespace that has no mount of them.
    """
    with open(os.path.join(root, 'proc/sys/kernel/random/boot_id')) as file:
        boot = file.read().strip()
    return {'boot': boot, 'cpus': sorted(os.sched_getaffinity(0)), 'quota': quota(root), 'memory': total_bytes(root),
            'hidden': not any(os.path.exists(os.path.join(folder, 'cgroup.procs')) for folder, _ in _groups(root))}


def core_share() -> float:
    """What a thread that never waits gets of a core, while as many compute as do now; it takes half a second."""
    clock, cpu = time.monotonic(), time.thread_time()
    while time.monotonic() < clock + _SPIN_S:
        pass
    return (time.thread_time() - cpu) / (time.monotonic() - clock)


def quota(root: str = '/') -> Optional[List[Any]]:
    """The tightest quota of this process: its group, cores, and seconds of a core that may be used at once."""
    found: List[List[Any]] = []
    for folder, group in _groups(root):
        limit = _limit(folder)
        if limit is not None:
            found.append([group, limit[0], limit[1]])
    return min(found, key=lambda one: one[1]) if found else None


def _groups(root: str) -> Iterator[Tuple[str, str]]:
    """The groups that this process is in, up to the outermost: folder, and name."""
    with open(os.path.join(root, 'proc/self/cgroup')) as lines:
        entries = [line.rstrip('\n').split(':', 2) for line in lines]
    base = os.path.join(root, 'sys/fs/cgroup')
    for _, controllers, path in entries:
        mounts = [os.path.join(base, name) for name in _VERSION_1] if 'cpu' in controllers.split(',') else [
            base, os.path.join(base, 'unified')] if not controllers else []
        for mount in mounts:
            # In a container, outer parts of the path may not be there: what is mounted is its own group.
            place = path if os.path.isdir(mount + path) else '/'
            while os.path.isdir(mount):
                yield mount + place, controllers + ':' + place
                if place == '/':
                    break
                place = os.path.dirname(place)


def _limit(folder: str) -> Optional[Tuple[float, float]]:
    """Cores, and seconds at once, of a group; None where it has no quota."""
    try:
        both = _words(folder, 'cpu.max')
        burst = _words(folder, 'cpu.max.burst') or ['0']
        if not both:
            both = _words(folder, 'cpu.cfs_quota_us') + _words(folder, 'cpu.cfs_period_us')
            burst = _words(folder, 'cpu.cfs_burst_us') or ['0']
        allowed, period = (int(word) for word in both)
        return (allowed / period, (allowed + int(burst[0])) * 1e-6) if allowed > 0 else None
    except ValueError:  # 'max', or no such file
        return None


def _words(folder: str, name: str) -> List[str]:
    try:
        with open(os.path.join(folder, name)) as file:
            return file.read().split()
    except OSError:
        return []


def hosts_of(places: Sequence[str], names: Sequence[str], found: Sequence[Dict[str, Any]], speeds: Sequence[float],
             shares: Sequence[float]) -> List[Host]:
    """The hosts of a job, by what its ranks have found; the sequences are by rank.  `shares` are what each gets of a
    core while all compute, which counts where quotas are hidden.

    Hosts of one machine, as emulated ones are, get each processor that several of them may use in equal shares, and so
    a quota that they have together, and the memory.
    """
    ranks = {place: [rank for rank, other in enumerate(places) if other == place] for place in dict.fromkeys(places)}
    for those in ranks.values():
        if those != list(range(those[0], those[0] + len(those))):
            raise InputError('calibrate: workers %s are on host %s: plans number workers host by host: start them so, '
                             'as horovodrun -H does' % (', '.join(map(str, those)), names[those[0]]))
    cpus = {place: {(found[rank]['boot'], cpu) for rank in those for cpu in found[rank]['cpus']}
            for place, those in ranks.items()}
    quotas = {place: {(found[rank]['boot'], found[rank]['quota'][0]): found[rank]['quota'][1:] for rank in those
                      if found[rank]['quota']} for place, those in ranks.items()}
    boots = {place: found[those[0]]['boot'] for place, those in ranks.items()}
    hosts = []
    for place, those in ranks.items():
        cores = sum(1 / sum(cpu in others for others in cpus.values()) for cpu in cpus[place])
        burst = 0.0
        if all(found[rank]['quota'] for rank in those):
            parts = [[value / sum(group in others for others in quotas.values()) for value in values]
                     for group, values in quotas[place].items()]
            allowed = sum(part[0] for part in parts)
            if allowed < cores:
                cores, burst = allowed, sum(part[1] for part in parts)
        got = sum(shares[rank] for rank in those)
        if any(found[rank]['hidden'] for rank in those) and got < _LESS * min(cores, len(those)):
            cores, burst = got, 0.0
        memory = min(found[rank]['memory'] for rank in those) // list(boots.values()).count(boots[place])
        speed = sum(speeds[rank] for rank in those) / len(those)
        hosts.append(Host(names[those[0]], len(those), cores, burst, speed, memory))
    return hosts
