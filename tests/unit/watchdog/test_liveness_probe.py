"""Liveness probes: a probe answers every client, and malformed answers count as none."""
import contextlib
import socket
import threading
import time

import pytest

from mxhybrid.base import proc
from mxhybrid.watchdog import identity
from mxhybrid.watchdog.activity import Activity
from mxhybrid.watchdog.liveness_probe import MAX_ANSWER_BYTES, PROBE_S, query_probe, serve_samples

pytestmark = pytest.mark.both_pythons


def test_a_probe_answers_every_client(program):
    process = program('computes')
    known = dict(identity.this_process(), pid=process.pid, started=proc.state_and_start(process.pid)[1])
    address = serve_samples('127.0.0.1', lambda: identity.sample_process(known))
    activity = Activity()
    while activity.is_computing is None:
        sample = query_probe(address)
        assert set(sample) == {'time_s', 'state', 'threads'} and str(process.pid) in sample['threads']
        assert sample['state'] in ('R', 'S')
        activity.add_sample(sample)
        time.sleep(0.3)
    assert activity.is_computing
    process.kill()
    process.wait()
    assert query_probe(address) is None


@pytest.mark.parametrize('answer', [
    b'', b'null', b'{', b'[]', b'"x"', b'\xff', b'{"time_s": 1}', b'{"time_s": "x", "threads": {}}', b'[' * 100000,
    b'{"time_s": 1, "threads": []}', b'{"time_s": 1, "threads": {"1": [1]}}',
    b'{"time_s": 1, "threads": {"1": [1, 1]}}', b'{"time_s": 1, "threads": {"1": "abc"}}',
    b' ' * (2 * MAX_ANSWER_BYTES), None], ids=lambda answer: repr(answer)[:20])
def test_malformed_and_late_answers_count_as_none(answer):
    with socket.create_server(('127.0.0.1', 0)) as listener:
        def serve():
            peer, _ = listener.accept()
            with peer, contextlib.suppress(OSError):  # the client may have read enough
                if answer is None:
                    gave_up.wait(20 * PROBE_S)  # longer than a client waits
                else:
                    peer.sendall(answer + b'\n')
        gave_up = threading.Event()
        thread = threading.Thread(target=serve)
        thread.start()
        assert query_probe(listener.getsockname()[:2]) is None
        assert answer is not None or thread.is_alive()
        gave_up.set()
        thread.join()
    assert query_probe(('127.0.0.1', 1)) is None
