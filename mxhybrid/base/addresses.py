"""Addresses, interfaces and ports of this host."""
import socket
from typing import Optional

from .errors import SettingError


def free_port(host: str) -> int:
    """A TCP port that the system says is free on `host`."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind((host, 0))
        return sock.getsockname()[1]


def interface_address(interface: str) -> str:
    """IPv4 address of a network interface; SettingError where it has none, or there is no such interface."""
    import psutil  # comes with Horovod

    addresses = psutil.net_if_addrs()
    for entry in addresses.get(interface, []):
        if entry.family == socket.AF_INET:
            return entry.address
    raise SettingError('HOROVOD_GLOO_IFACE=%r has no IPv4 address on host %s: choose one of %s with '
                       'horovodrun --network-interface'
                       % (interface, socket.gethostname(), ', '.join(sorted(addresses))))


def interface_of(address: str) -> Optional[str]:
    """Name of the network interface that has the IPv4 `address`."""
    import psutil

    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return name
    return None


def address_towards(host: str, port: int) -> str:
    """Own IPv4 address as seen on the way to `host`; sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((host, port))
        return sock.getsockname()[0]


def check_host_name(several_hosts: bool = True) -> str:
    """Return the address of this host's own name, which Horovod looks up.

    SettingError where the name does not resolve, at which Horovod crashes, and in a job of `several_hosts` where it is
    loopback, which Horovod would advertise to others.
    """
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        raise SettingError('host name %r does not resolve (%s), and Horovod, which looks it up, would crash: add a '
                           'line "<its network address> %s" to /etc/hosts, or "127.0.1.1 %s" if all workers run on '
                           'this host'
                           % (name, error, name, name)) from error
    if several_hosts and address.startswith('127.'):
        raise SettingError('host name %r resolves to %s on this host, but the job spans several hosts and Horovod '
                           'tells them this address: replace it in /etc/hosts by "<its network address> %s"'
                           % (name, address, name))
    return address
