"""Messages of strangers to the job monitor end neither the monitor nor the job."""
import socket
import time

import pytest

from mxhybrid.watchdog.admission import answer_challenge
from mxhybrid.watchdog.messages import send
from mxhybrid.watchdog.monitor import Monitor

pytestmark = pytest.mark.both_pythons


@pytest.mark.parametrize('noise', [b'5\n', b'[]\n', b'{"hello": 5}\n', b'{"hello": {}}\n', b'{"done": 1}\n',
                                   b'\xff\xfe\n', b'{"hello": {"name": "x", "rank": "y"}}\n',
                                   b'GET / HTTP/1.1\r\n\r\n'])
def test_noise(noise):
    monitor = Monitor('127.0.0.1', 1, 0, 'open sesame')
    failures = []
    monitor.report_failure = lambda text, **_: failures.append(text)
    with socket.create_connection(monitor.address) as stranger:
        stranger.sendall(noise)
        time.sleep(0.2)
    assert not failures
    with socket.create_connection(monitor.address) as worker:
        send(worker, answer_challenge(worker, 'open sesame', 'worker 1', 1))
        time.sleep(0.2)
    deadline = time.monotonic() + 30
    while not failures and time.monotonic() < deadline:
        time.sleep(0.05)
    assert failures == ['worker 1 died unexpectedly (killed, or crashed in native code)']
