"""Where the processes of a job run: on emulated hosts, or on this one as it is."""
from typing import List, Optional, Sequence

from lab.emulation import INTERFACE, Network


class Emulated:
    """Emulated hosts with links of a rate; a context manager, which leaves nothing behind.

    Attributes
    ----------
    link : str
        Network interface that libraries are told to use.
    counted : str or None
        Interface whose counters tell what a host sends and receives.
    """

    link = INTERFACE
    counted: Optional[str] = INTERFACE

    def __init__(self, hosts: int, mbit_per_s: Optional[float], congestion_control: str):
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

    def kill_processes(self) -> None:
        """End all processes on all hosts."""
        self._network.kill_processes()


class Loopback:
    """Plain processes: all workers share this host, and nothing limits or counts what they exchange."""

    link = 'lo'
    counted: Optional[str] = None

    def __enter__(self) -> 'Loopback':
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def name(self, host: int) -> str:
        """The same for all."""
        return 'localhost'

    def address(self, host: int) -> str:
        """The same for all."""
        return '127.0.0.1'

    def argv(self, host: int, argv: Sequence[str]) -> List[str]:
        """The command line as it is."""
        return list(argv)

    def kill_processes(self) -> None:
        """Nothing to end beyond what carries the job's marker."""
