"""Emulated hosts with processors of their own: two divide the machine's, more get quotas of control groups.

Without limits hosts take processors from each other, and the time of a plan depends on other processes.
"""
import os
import uuid
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from lab.emulation import EmulationError

from .testbeds import Emulated

_CGROUP = Path('/sys/fs/cgroup/cpu')
#: Longer periods spread times of steps, and the kernel refuses shorter quotas than 1 ms.
_PERIOD_US, _LEAST_QUOTA_US = 2500, 1000
#: The share of the processors that hosts have by default: the rest is for the kernel, whose work for the network is not
#: charged to any process.
_SHARE_OF_ALL = 0.8


class Limited(Emulated):
    """Emulated hosts as in :class:`Emulated`, each on its share of the processors.

    Parameters
    ----------
    share : float, optional
        The share of a processor that each host has.  By default hosts have processors of their own, or equal shares of
        80 % of all of them.  With small shares, other programs of the machine disturb hosts less.
    """

    def __init__(self, hosts: int, mbit_per_s: Optional[float], congestion_control: str, share: Optional[float] = None):
        super().__init__(hosts, mbit_per_s, congestion_control)
        self._share = share
        self._processors = sorted(os.sched_getaffinity(0))
        self._groups: List[Optional[Path]] = [None] * hosts
        self._quotas: Dict[Path, int] = {}

    def open(self) -> None:
        """Make the control groups, which go after the processes in them, and the hosts."""
        if self._share is not None or len(self.hosts) > len(self._processors):
            self._make_groups()
        super().open()

    def _make_groups(self) -> None:
        period, quota = _PERIOD_US, int(_SHARE_OF_ALL * _PERIOD_US * len(self._processors) / len(self.hosts))
        if self._share is not None:
            quota = max(int(self._share * period), _LEAST_QUOTA_US)
            period = int(quota / self._share)
        if quota < _LEAST_QUOTA_US:
            raise EmulationError('%d hosts on %d processors would have less than %d us of CPU time in each %d us, the '
                                 'least that the kernel accepts: emulate at most %d hosts'
                                 % (len(self.hosts), len(self._processors), _LEAST_QUOTA_US, _PERIOD_US,
                                    2 * len(self._processors)))
        for host in range(len(self.hosts)):
            group = _CGROUP / ('mxhybrid-%s' % uuid.uuid4().hex[:8])
            try:
                group.mkdir()
                self._undo.callback(group.rmdir)
                self._quotas[group] = quota
                for name, value in (('cpu.cfs_period_us', period), ('cpu.cfs_quota_us', quota)):
                    (group / name).write_text(str(value))
                    if int((group / name).read_text()) != value:
                        raise EmulationError('%s: the kernel did not take %d' % (group / name, value))
            except OSError as error:
                raise EmulationError('control groups of version 1 are needed for more hosts than processors: %s'
                                     % error) from error
            self._groups[host] = group

    def limit(self, on: bool) -> None:
        """Apply the limits, or let all hosts use their processors as they can."""
        for group, quota in self._quotas.items():
            (group / 'cpu.cfs_quota_us').write_text(str(quota if on else -1))

    def argv(self, host_index: int, argv: Sequence[object]) -> List[str]:
        """Return the command line that runs a command on a host, within its limits."""
        command = super().argv(host_index, argv)
        # Outside of the host's namespace, in which /sys is another one.
        if self._groups[host_index] is not None:
            command = ['sh', '-c', 'echo $$ > %s/cgroup.procs && exec "$@"' % self._groups[host_index], 'sh'] + command
        count, hosts = len(self._processors), len(self.hosts)
        first = host_index * count // hosts
        own_processors = self._processors[first:first + max(1, count // hosts)]
        return ['taskset', '-c', ','.join(map(str, own_processors))] + command
