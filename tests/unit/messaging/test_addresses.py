"""Addresses and ports of this host, and its own name."""
import contextlib
import socket

import pytest

from mxhybrid.base.errors import SettingError
from mxhybrid.messaging import addresses

pytestmark = pytest.mark.both_pythons


def test_a_reserved_port_stays_free_for_its_server():
    with addresses.reserve_port('127.0.0.1') as reservation:
        address = reservation.getsockname()
        with socket.socket() as other, pytest.raises(OSError, match='in use'):
            other.bind(address)
        with socket.create_server(address):  # sets SO_REUSEADDR, as ps-lite does
            socket.create_connection(address, timeout=10).close()


def test_reserved_ports_differ():
    with contextlib.ExitStack() as stack:
        reservations = [stack.enter_context(addresses.reserve_port('127.0.0.1')) for _ in range(200)]
        assert len({reservation.getsockname()[1] for reservation in reservations}) == 200


def test_interfaces_of_addresses():
    assert addresses.interface_address(addresses.interface_of('127.0.0.1')) == '127.0.0.1'
    assert addresses.interface_of('192.0.2.1') is None  # reserved for documentation


def test_an_unknown_interface_is_named_with_the_known_ones():
    with pytest.raises(SettingError, match="HOROVOD_GLOO_IFACE='nosuch0'.*--network-interface") as caught:
        addresses.interface_address('nosuch0')
    assert addresses.interface_of('127.0.0.1') in str(caught.value)


def test_the_address_towards_a_neighbour_is_ours():
    assert addresses.address_towards('127.0.0.1', 9) == '127.0.0.1'


@pytest.fixture
def name_resolves(monkeypatch):
    """Return a function that gives this host the name node7 and an address, or an error of looking it up."""
    def resolves(answer):
        def resolve(name):
            assert name == 'node7'
            if isinstance(answer, Exception):
                raise answer
            return answer
        monkeypatch.setattr(socket, 'gethostname', lambda: 'node7')
        monkeypatch.setattr(socket, 'gethostbyname', resolve)
    return resolves


@pytest.mark.parametrize('address, several_hosts', [('10.0.0.7', True), ('127.0.1.1', False)])
def test_names_whose_address_suffices_pass(name_resolves, address, several_hosts):
    name_resolves(address)
    assert addresses.check_host_name(several_hosts) == address


@pytest.mark.parametrize('answer, several_hosts, problem', [
    ('127.0.0.1', True, "'node7' resolves to 127.0.0.1"), ('127.0.1.1', True, "'node7' resolves to 127.0.1.1"),
    (socket.gaierror(-2, 'Not known'), False, "'node7' does not resolve.*Not known"),
    (socket.gaierror(-2, 'Not known'), True, "'node7' does not resolve.*Not known")])
def test_other_names_are_refused_with_their_remedy(name_resolves, answer, several_hosts, problem):
    name_resolves(answer)
    with pytest.raises(SettingError, match=problem) as caught:
        addresses.check_host_name(several_hosts)
    assert '/etc/hosts' in str(caught.value) and '"<its network address> node7"' in str(caught.value)
