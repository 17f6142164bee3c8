"""Places where the processes of a job run: emulated hosts, with or without limited processors, or this host as it is.
"""
import os
import uuid
from pathlib import Path
from typing import List, Optional, Sequence

from lab.emulation import INTERFACE, EmulationError, Network

_CGROUP = Path('/sys/fs/cgroup/cpu')
#: Longer periods spread times of steps, and the kernel refuses shorter quotas than 1 ms.
_PERIOD_US, _LEAST_QUOTA_US = 2500, 1000
#: The share of the processors that hosts have by default: the rest is for the kernel, whose work for the network is not
#: charged to any process.
_SHARE_OF_ALL = 0.8


class Emulated(Network):
    """Emulated hosts with links of a rate, as a benchmark sees them."""

    #: The network interface that libraries are told to use.
    link = INTERFACE
    #: The interface whose counters give the bytes that a host sends and receives.
    counted: Optional[str] = INTERFACE

    def __init__(self, hosts: int, mbit_per_s: Optional[float], congestion_control: str):
        super().__init__(hosts, mbit_per_s, congestion_control=congestion_control)
        self.mbit = mbit_per_s

    def name(self, host: int) -> str:
        """Name of a host."""
        return self.hosts[host].name

    def address(self, host: int) -> str:
        """IPv4 address of a host."""
        return self.hosts[host].address

    def switch_argv(self, argv: Sequence[str]) -> List[str]:
        """Return the command line that runs a command where the ports of all hosts can be seen."""
        return ['ip', 'netns', 'exec', self.switch] + list(argv)


class Limited(Emulated):
    """Emulated hosts, each on its share of the processors: two divide the machine's, more get quotas of control groups.

    Without limits hosts take processors from each other, and the time of a plan depends on other processes.  `share` is
    the share of a processor that each host has; by default hosts have processors of their own, or equal shares of 80 %
    of all of them.  With small shares, other programs of the machine disturb hosts less.
    """

    def __init__(self, hosts: int, mbit_per_s: Optional[float], congestion_control: str, share: Optional[float] = None):
        super().__init__(hosts, mbit_per_s, congestion_control)
        self._share = share
        self._processors = sorted(os.sched_getaffinity(0))
        self._groups: List[Path] = []
        self._quota_us = 0

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
        self._quota_us = quota
        for _ in self.hosts:
            group = _CGROUP / ('mxhybrid-%s' % uuid.uuid4().hex[:8])
            try:
                group.mkdir()
                self._undo.callback(group.rmdir)
                self._groups.append(group)
                for name, value in (('cpu.cfs_period_us', period), ('cpu.cfs_quota_us', quota)):
                    (group / name).write_text(str(value))
                    if int((group / name).read_text()) != value:
                        raise EmulationError('%s: the kernel did not take %d' % (group / name, value))
            except OSError as error:
                raise EmulationError('control groups of version 1 are needed for more hosts than processors: %s'
                                     % error) from error

    def limit(self, on: bool) -> None:
        """Apply the limits, or let all hosts use their processors as they can."""
        for group in self._groups:
            (group / 'cpu.cfs_quota_us').write_text(str(self._quota_us if on else -1))

    def argv(self, host_index: int, argv: Sequence[object]) -> List[str]:
        """Return the command line that runs a command on a host, within its limits."""
        command = super().argv(host_index, argv)
        # Outside of the host's namespace, in which /sys is another one.
        if self._groups:
            command = ['sh', '-c', 'echo $$ > %s/cgroup.procs && exec "$@"' % self._groups[host_index], 'sh'] + command
        count, hosts = len(self._processors), len(self.hosts)
        first = host_index * count // hosts
        own_processors = self._processors[first:first + max(1, count // hosts)]
        return ['taskset', '-c', ','.join(map(str, own_processors))] + command


class Loopback:
    """Plain processes: all workers share this host, and nothing limits or counts their traffic."""

    link = 'lo'
    counted: Optional[str] = None

    def __enter__(self) -> 'Loopback':
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def name(self, host: int) -> str:
        """Return the name of this host."""
        return 'localhost'

    def address(self, host: int) -> str:
        """Return the address of this host."""
        return '127.0.0.1'

    def argv(self, host: int, argv: Sequence[str]) -> List[str]:
        """Return the command line as it is."""
        return list(argv)

    def kill_processes(self) -> None:
        """Do nothing: all processes carry the marker of the job, by which they are ended."""
