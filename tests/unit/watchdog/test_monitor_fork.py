"""The death of a process is noticed although a child that it forked lives on and inherited its connections."""
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from mxhybrid.watchdog.admission import answer_challenge
from mxhybrid.watchdog.messages import send
from mxhybrid.watchdog.monitor import Monitor

pytestmark = pytest.mark.both_pythons

CHILD = '''
import os, sys, time
from mxhybrid.watchdog.lifeline import Lifeline
from mxhybrid.watchdog.monitor import Monitor
if sys.argv[1] == 'monitor':
    monitor = Monitor('127.0.0.1', 1, 0, 'open sesame')
    print(monitor.address[1], flush=True)
    while not monitor.peers():  # until the test has connected
        time.sleep(0.01)
else:
    Lifeline(('127.0.0.1', int(sys.argv[1])), 'worker 1', 1, 10, 'open sesame')
pid = os.fork()
if pid == 0:
    time.sleep(60)
    os._exit(0)
print(pid, flush=True)
time.sleep(60)
'''


@pytest.fixture
def forking():
    """Start CHILD with an argument; kill it and the processes that it forked."""
    started = []

    def start(argument):
        process = subprocess.Popen([sys.executable, '-c', CHILD, argument], stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    pids = []
    yield start, pids
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def test_worker_that_forked(forking):
    start, pids = forking
    monitor = Monitor('127.0.0.1', 2, 0, 'open sesame')
    failures = []
    monitor.report_failure = lambda text, **_: failures.append(text)
    process = start(str(monitor.address[1]))
    pids.append(int(process.stdout.readline()))
    process.kill()
    deadline = time.monotonic() + 30
    while not failures and time.monotonic() < deadline:
        time.sleep(0.05)
    assert failures == ['worker 1 died unexpectedly (killed, or crashed in native code)']


def test_monitor_that_forked(forking):
    start, pids = forking
    process = start('monitor')
    with socket.create_connection(('127.0.0.1', int(process.stdout.readline()))) as connection:
        send(connection, answer_challenge(connection, 'open sesame', 'worker 1', 1))
        pids.append(int(process.stdout.readline()))
        process.kill()
        connection.settimeout(30)
        assert connection.recv(1) == b''
