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


def test_loopback_has_its_interface_and_address():
    interface = addresses.interface_of('127.0.0.1')
    assert interface is not None
    assert addresses.interface_address(interface) == '127.0.0.1'


def test_an_address_of_no_interface_has_none():
    assert addresses.interface_of('192.0.2.1') is None  # reserved for documentation


def test_an_unknown_interface_is_named_with_the_known_ones():
    with pytest.raises(SettingError) as caught:
        addresses.interface_address('nosuch0')
    text = str(caught.value)
    assert "HOROVOD_GLOO_IFACE='nosuch0'" in text
    assert addresses.interface_of('127.0.0.1') in text
    assert '--network-interface' in text


def test_the_address_towards_a_neighbour_is_ours():
    assert addresses.address_towards('127.0.0.1', 9) == '127.0.0.1'


def name_resolves(monkeypatch, answer):
    """Have this host be called node7 and its name resolve to `answer`, or raise it."""
    def resolve(name):
        assert name == 'node7'
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(socket, 'gethostname', lambda: 'node7')
    monkeypatch.setattr(socket, 'gethostbyname', resolve)


def test_a_host_name_with_a_network_address_passes(monkeypatch):
    name_resolves(monkeypatch, '10.0.0.7')
    assert addresses.check_host_name() == '10.0.0.7'


@pytest.mark.parametrize('address', ['127.0.0.1', '127.0.1.1'])
def test_a_loopback_host_name_is_refused_with_its_remedy(monkeypatch, address):
    name_resolves(monkeypatch, address)
    with pytest.raises(SettingError) as caught:
        addresses.check_host_name()
    text = str(caught.value)
    assert "'node7' resolves to %s" % address in text
    assert '/etc/hosts' in text and '"<its network address> node7"' in text


def test_loopback_will_do_on_one_host(monkeypatch):
    name_resolves(monkeypatch, '127.0.1.1')
    assert addresses.check_host_name(several_hosts=False) == '127.0.1.1'


@pytest.mark.parametrize('several_hosts', [False, True])
def test_an_unresolved_host_name_is_refused_with_its_remedy(monkeypatch, several_hosts):
    name_resolves(monkeypatch, socket.gaierror(-2, 'Name or service not known'))
    with pytest.raises(SettingError) as caught:
        addresses.check_host_name(several_hosts)
    text = str(caught.value)
    assert "'node7' does not resolve" in text and 'Name or service not known' in text
    assert '/etc/hosts' in text and '"<its network address> node7"' in text
