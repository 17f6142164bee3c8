"""Places where the processes of a job run: emulated hosts, or this host as it is."""
from typing import List, Optional, Sequence

from lab.emulation import INTERFACE, Network


class Emulated:
    """Emulated hosts with links of a rate; a context manager, which leaves nothing behind.

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
        self.mbit = mbit_per_s
        self._network = Network(hosts, mbit_per_s, congestion_control=congestion_control)

    def __enter__(self) -> 'Emulated':
        self._network.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._network.close()

    def name(self, host: int) -> str:
        """Name of a host."""
        return self._network.hosts[host].name

    def address(self, host: int) -> str:
        """IPv4 address of a host."""
        return self._network.hosts[host].address

    def argv(self, host: int, argv: Sequence[str]) -> List[str]:
        """The command line that runs a command on a host."""
        return self._network.argv(host, argv)

    def switch_argv(self, argv: Sequence[str]) -> List[str]:
        """Return the command line that runs a command where the ports of all hosts can be seen."""
        return ['ip', 'netns', 'exec', self._network.switch] + list(argv)

    def kill_processes(self) -> None:
        """End all processes on all hosts."""
        self._network.kill_processes()


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
