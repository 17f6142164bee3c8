"""Addresses, interfaces and ports of this host."""
import socket
from typing import Optional

from ..base.errors import SettingError


def reserve_port(host: str) -> socket.socket:
    """Return a socket that holds a free TCP port of `host` until it is closed.

    The system gives the port to nobody else.  A server that sets SO_REUSEADDR, as ps-lite's does, can listen on it.
    """
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reservation.bind((host, 0))
    # Set after the port was chosen: the system gives the same port to several sockets that set it before.
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return reservation


def interface_address(interface: str) -> str:
    """Return the IPv4 address of a network interface; SettingError if it has none, or does not exist."""
    import psutil  # comes with Horovod

    addresses = psutil.net_if_addrs()
    for entry in addresses.get(interface, []):
        if entry.family == socket.AF_INET:
            return entry.address
    raise SettingError('HOROVOD_GLOO_IFACE=%r has no IPv4 address on host %s: choose one of %s with '
                       'horovodrun --network-interface'
                       % (interface, socket.gethostname(), ', '.join(sorted(addresses))))


def interface_of(address: str) -> Optional[str]:
    """Return the name of the network interface with the IPv4 `address`; None if there is none."""
    import psutil

    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return name
    return None


def address_towards(host: str, port: int) -> str:
    """Return the IPv4 address of this host on the route to `host`; sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((host, port))
        return sock.getsockname()[0]


def check_host_name(several_hosts: bool = True) -> str:
    """Return the address of this host's name, which Horovod looks up.

    SettingError if the name does not resolve: Horovod would crash.  In a job of `several_hosts` also if the address is
    loopback: Horovod would advertise it to other hosts.
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
