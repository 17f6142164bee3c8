"""A scheduler without a lifeline: it lives while it greets, and is silent or gone otherwise."""
import queue
import socket
import threading

import pytest

from mxhybrid.watchdog import scheduler

pytestmark = pytest.mark.both_pythons

LIMIT_S = 15


@pytest.fixture(params=['tcp', 'unix'])
def watched(request, monkeypatch, tmp_path):
    """Watch a listening socket that greets as long as it is told to."""
    monkeypatch.setattr(scheduler, 'POLL_S', 0.02)
    monkeypatch.setattr(scheduler, '_ANSWER_S', 0.05)
    failures, ended, greets = queue.Queue(), threading.Event(), threading.Event()
    greets.set()
    if request.param == 'tcp':
        listener = socket.create_server(('127.0.0.1', 0))
        address = listener.getsockname()
    else:  # as ps-lite's with DMLC_LOCAL
        monkeypatch.setenv('DMLC_LOCAL', '1')
        monkeypatch.setattr(scheduler, '_LOCAL_PATH', str(tmp_path / '%d'))
        address = '127.0.0.1', 17
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(tmp_path / '17'))
        listener.listen()
    greeted = queue.Queue()

    def serve():
        held = []
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            held.append(peer)
            if greets.is_set():
                peer.sendall(b'\xff')
                greeted.put(True)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    threading.Thread(target=scheduler.watch_scheduler, args=(address, 0.5, failures.put, ended.is_set),
                     daemon=True).start()
    yield address, listener, greets, greeted, failures
    ended.set()
    listener.close()


def test_a_scheduler_that_stops_greeting_is_silent(watched):
    address, _, greets, greeted, failures = watched
    for _ in range(5):
        assert greeted.get(timeout=LIMIT_S)
    assert failures.empty()
    greets.clear()
    assert failures.get(timeout=LIMIT_S).startswith('the scheduler at 127.0.0.1:%d has been silent for' % address[1])


def test_a_scheduler_that_does_not_listen_is_dead(watched):
    address, listener, _, greeted, failures = watched
    assert greeted.get(timeout=LIMIT_S)
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    assert failures.get(timeout=LIMIT_S) == 'the scheduler at 127.0.0.1:%d died' % address[1]
