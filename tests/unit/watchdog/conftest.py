"""Fixtures: processes to look at, and processes of a job."""
import subprocess
import sys

import pytest

from mxhybrid.watchdog.monitor import Monitor

from .members import SECRET, Member

PROGRAMS = {
    'computes': 'sum(range(10 ** 12))',
    'sleeps with the lock': 'import ctypes; ctypes.PyDLL(None).sleep(600)',
    'looks for work': 'import time\nwhile True: time.sleep(0.001)',
    'waits': 'import threading; threading.Event().wait()',
}


@pytest.fixture
def program():
    """Start one of the programs beside a thread that wants the interpreter lock; gives the process."""
    started = []

    def start(name):
        text = ('import threading, time\ndef beat():\n    while True: time.sleep(0.01)\n'
                'threading.Thread(target=beat, daemon=True).start()\nprint("up", flush=True)\n' + PROGRAMS[name])
        process = subprocess.Popen([sys.executable, '-S', '-c', text], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout.readline() == b'up\n'
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def job():
    """Start members of one job; the monitor listens in this process."""
    members = []

    def start(workers, servers=0, address=None):
        monitor = None
        if address is None:
            monitor = Monitor('127.0.0.1', workers, servers, SECRET)
            address = monitor.address
        new = [Member(address, 'worker %d' % rank, rank) for rank in range(workers)]
        new += [Member(address, 'server %d' % number, -1) for number in range(servers)]
        members.extend(new)
        assert [member.answer() for member in new] == ['connected'] * len(new)
        return (monitor, *new) if monitor is not None else new

    yield start
    for member in members:
        if member.process.poll() is None:
            member.process.kill()
        member.process.communicate()
