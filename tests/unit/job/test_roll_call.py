"""The roll call before Horovod starts, with marks on a real rendezvous server."""
import http.client
import socket
import subprocess
import sys
import time
import types

import pytest

from mxhybrid.base import launcher
from mxhybrid.job.roll_call import MOST_EXTENSION, RollCall

pytestmark = pytest.mark.both_pythons

@pytest.fixture
def address():
    """The address of a rendezvous server such as horovodrun's."""
    http_server = pytest.importorskip('horovod.runner.http.http_server')
    server = http_server.RendezvousServer()
    yield '127.0.0.1', server.start()
    server.stop()


def test_workers_that_did_not_join_are_named(address):
    calls = [RollCall(address, rank, 4) for rank in range(4)]
    assert calls[0].missing() == 'worker 0, worker 1, worker 2, worker 3 did not join'
    for call in (calls[0], calls[2]):
        call.answer()
    assert calls[0].missing() == 'worker 1, worker 3 did not join'
    for call in calls:
        call.answer()
    assert calls[3].missing() == ''


def test_a_limit_counts_from_the_last_arrival(address, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr('mxhybrid.job.roll_call.time', types.SimpleNamespace(time=lambda: now[0]))
    calls = [RollCall(address, rank, 3) for rank in range(3)]
    for call in calls[:2]:
        call.answer()
        now[0] += 50
    assert calls[0].extension(120.0) == 70.0
    now[0] += 70
    assert calls[0].extension(120.0) == 0.0
    calls[2].answer()
    assert calls[0].extension(120.0) == 120.0


def test_clocks_ahead_extend_a_limit_by_a_bound(address, monkeypatch):
    call = RollCall(address, 0, 1)
    monkeypatch.setattr('mxhybrid.job.roll_call.time', types.SimpleNamespace(time=lambda: time.time() + 1e6))
    call.answer()
    monkeypatch.undo()
    extensions = [call.extension(7.0) for _ in range(12)]
    assert extensions == [7.0] * MOST_EXTENSION + [0.0, 0.0]


def test_only_some_of_many_are_named(address):
    assert RollCall(address, 0, 11).missing().endswith('worker 7 and 3 more did not join')


@pytest.fixture
def gone():
    """An address that refuses connections; no other process gets its port inside the block."""
    with socket.socket() as sock:
        sock.bind(('127.0.0.1', 0))
        yield sock.getsockname()


def test_a_launcher_that_is_gone_is_named(gone):
    call = RollCall(gone, 0, 2)
    assert 'the launcher at 127.0.0.1:' in call.missing()
    call.answer()
    assert 'does not answer' in call.missing()


def test_only_a_starting_worker_ends_with_the_launcher(address, gone):
    program = ('import sys, time\nfrom mxhybrid.job.roll_call import RollCall\n'
               'call = RollCall(("127.0.0.1", int(sys.argv[1])), 1, 2)\ncall.answer()\ncall.watch()\n'
               'if sys.argv[2] == "joined":\n    call.joined.set()\ntime.sleep(float(sys.argv[3]))')
    gone = str(gone[1])
    done = subprocess.run([sys.executable, '-c', program, gone, 'starting', '60'], stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 1
    assert done.stderr.decode() == '[mxhybrid] worker 1 ends, because the launcher at 127.0.0.1:%s has ended\n' % gone
    assert subprocess.run([sys.executable, '-c', program, gone, 'joined', '3'], timeout=60).returncode == 0
    assert subprocess.run([sys.executable, '-c', program, str(address[1]), 'starting', '3'], timeout=60).returncode == 0


def test_without_a_rendezvous_no_worker_is_named():
    call = RollCall(None, 0, 2)
    call.answer()
    assert call.missing() == ''


def test_the_address_is_horovodruns(monkeypatch, address):
    launch = launcher.read({'HOROVOD_GLOO_RENDEZVOUS_ADDR': address[0], 'HOROVOD_RANK': '1', 'HOROVOD_SIZE': '2',
                            'HOROVOD_GLOO_RENDEZVOUS_PORT': str(address[1])})
    monkeypatch.setenv('http_proxy', 'http://127.0.0.1:1')
    call = RollCall(launch.rendezvous, launch.rank, launch.workers)
    call.answer()
    assert call.missing() == 'worker 0 did not join'


def test_a_board_with_other_values_names_no_worker(address):
    board = http.client.HTTPConnection(*address)
    board.request('PUT', '/mxhybrid/0', b'no JSON')
    board.getresponse().read()
    board.close()
    assert RollCall(address, 1, 2).missing() == ''
