"""Processes to be looked at."""
import subprocess
import sys

import pytest

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
