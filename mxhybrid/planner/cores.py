"""What cores and memory hosts have for their ranks: affinity, quotas of cgroups, hosts that share one machine."""
import os
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from ..base.errors import InputError
from ..base.machine import total_bytes
from .cluster import Host

#: Where controllers of version 1 may be mounted.
_VERSION_1 = ('cpu', 'cpu,cpuacct', 'cpuacct,cpu')


def facts(root: str = '/') -> Dict[str, Any]:
    """What a rank's process sees, as JSON; `root` has /proc and /sys.

    ``quota``, if there is any: the group that has it, cores, and seconds of a core that may be used at once.
    """
    with open(os.path.join(root, 'proc/sys/kernel/random/boot_id')) as file:
        boot = file.read().strip()
    return {'boot': boot, 'cpus': sorted(os.sched_getaffinity(0)), 'quota': quota(root), 'memory': total_bytes(root)}


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


def hosts_of(places: Sequence[str], names: Sequence[str], found: Sequence[Dict[str, Any]], speeds: Sequence[float]
             ) -> List[Host]:
    """The hosts of a job, by what its ranks have found; the sequences are by rank.

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
            shares = [[value / sum(group in others for others in quotas.values()) for value in values]
                      for group, values in quotas[place].items()]
            allowed = sum(share[0] for share in shares)
            if allowed < cores:
                cores, burst = allowed, sum(share[1] for share in shares)
        memory = min(found[rank]['memory'] for rank in those) // list(boots.values()).count(boots[place])
        speed = sum(speeds[rank] for rank in those) / len(those)
        hosts.append(Host(names[those[0]], len(those), cores, burst, speed, memory))
    return hosts
