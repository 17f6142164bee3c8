"""Who has come to Horovod's start: marks in the table of a real rendezvous server."""
import subprocess
import sys

import pytest

from mxhybrid.processes import free_port
from mxhybrid.rollcall import RollCall

NAMES = ('GLOO_RENDEZVOUS_ADDR', 'GLOO_RENDEZVOUS_PORT', 'RANK', 'SIZE')


@pytest.fixture
def address():
    """Of a server as horovodrun has it."""
    http_server = pytest.importorskip('horovod.runner.http.http_server')
    server = http_server.RendezvousServer()
    yield '127.0.0.1:%d' % server.start()
    server.stop()


def test_those_that_did_not_come_are_named(address):
    calls = [RollCall(address, rank, 4) for rank in range(4)]
    assert calls[0].missing() == 'worker 0, worker 1, worker 2, worker 3 did not come'
    for call in (calls[0], calls[2]):
        call.answer()
    assert calls[0].missing() == 'worker 1, worker 3 did not come'
    for call in calls:
        call.answer()
    assert calls[3].missing() == ''


def test_of_many_some_are_named(address):
    assert RollCall(address, 0, 11).missing().endswith('worker 7 and 3 more did not come')


def test_a_launcher_that_is_gone_is_named():
    call = RollCall('127.0.0.1:%d' % free_port('127.0.0.1'), 0, 2)
    assert 'the launcher at 127.0.0.1:' in call.missing()
    call.answer()
    assert 'does not answer' in call.missing()


def test_a_worker_that_starts_ends_with_the_launcher_and_one_that_has_joined_does_not(address, monkeypatch):
    program = ('import sys, time\nfrom mxhybrid.rollcall import RollCall\n'
               'call = RollCall(sys.argv[1], 1, 2)\ncall.answer()\ncall.watch()\n'
               'if sys.argv[2] == "joined":\n    call.joined()\ntime.sleep(float(sys.argv[3]))')
    gone = '127.0.0.1:%d' % free_port('127.0.0.1')
    done = subprocess.run([sys.executable, '-c', program, gone, 'starting', '60'], stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 1
    assert done.stderr.decode() == '[mxhybrid] worker 1 ends, because the launcher at %s has ended\n' % gone
    assert subprocess.run([sys.executable, '-c', program, gone, 'joined', '3'], timeout=60).returncode == 0
    assert subprocess.run([sys.executable, '-c', program, address, 'starting', '3'], timeout=60).returncode == 0


def test_without_a_rendezvous_nobody_is_named(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv('HOROVOD_' + name, raising=False)
    call = RollCall.of_horovodrun()
    call.answer()
    assert call.missing() == ''


def test_the_address_is_horovodruns(monkeypatch, address):
    host, port = address.split(':')
    for name, value in zip(NAMES, (host, port, '1', '2')):
        monkeypatch.setenv('HOROVOD_' + name, value)
    monkeypatch.setenv('http_proxy', 'http://127.0.0.1:1')
    call = RollCall.of_horovodrun()
    call.answer()
    assert call.missing() == 'worker 0 did not come'
