"""Witnesses tell whoever asks, and nobody believes what is none."""
import socket
import threading
import time

import pytest

from mxhybrid.base import proc
from mxhybrid.watchdog import identity
from mxhybrid.watchdog.activity import Activity
from mxhybrid.watchdog.liveness_probe import MAX_ANSWER_BYTES, PROBE_S, ProbeServer, query_probe

pytestmark = pytest.mark.both_pythons


def test_a_witness_tells_whoever_asks(program):
    process = program('computes')
    known = dict(identity.this_process(), pid=process.pid, started=proc.state_and_start(process.pid)[1])
    probe = ProbeServer('127.0.0.1', lambda: identity.sample_process(known))
    seen = Activity()
    while seen.is_computing is None:
        found = query_probe(probe.address)
        assert set(found) == {'time_s', 'state', 'threads'} and str(process.pid) in found['threads']
        assert found['state'] in ('R', 'S')
        seen.add_sample(found)
        time.sleep(0.3)
    assert seen.is_computing
    process.kill()
    process.wait()
    assert query_probe(probe.address) is None


@pytest.mark.parametrize('answer', [
    b'', b'null', b'{', b'[]', b'"x"', b'\xff', b'{"time_s": 1}', b'{"time_s": "x", "threads": {}}', b'[' * 100000,
    b'{"time_s": 1, "threads": []}', b'{"time_s": 1, "threads": {"1": [1]}}', b'{"time_s": 1, "threads": {"1": "ab"}}',
    b' ' * (2 * MAX_ANSWER_BYTES), None], ids=lambda answer: repr(answer)[:20])
def test_a_witness_that_is_none_says_nothing(answer):
    with socket.create_server(('127.0.0.1', 0)) as listener:
        def serve():
            peer, _ = listener.accept()
            with peer:
                if answer is None:
                    time.sleep(4 * PROBE_S)  # longer than anybody waits
                else:
                    try:
                        peer.sendall(answer + b'\n')
                    except OSError:
                        pass  # it did not want to hear more
        thread = threading.Thread(target=serve)
        thread.start()
        start = time.monotonic()
        assert query_probe(listener.getsockname()[:2]) is None
        assert time.monotonic() - start < 3 * PROBE_S
        thread.join()
    assert query_probe(('127.0.0.1', 1)) is None
