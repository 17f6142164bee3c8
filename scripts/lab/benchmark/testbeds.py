"""Places where the processes of a job run: emulated hosts, or this host as it is."""
from typing import List, Optional, Sequence

from lab.emulation import INTERFACE, Network


class Emulated(Network):
    """Emulated hosts with links of a rate, as a benchmark sees them.

    Attributes
    ----------
    link : str
        Network interface that libraries are told to use.
    counted : str or None
        Interface whose counters give the bytes that a host sends and receives.
    mbit : float or None
        The rate of every link in Mbit/s.
    """

    link = INTERFACE
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
