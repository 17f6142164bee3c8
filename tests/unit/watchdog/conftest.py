"""Fixtures: processes to look at, and processes of a job."""
import pytest

from mxhybrid.watchdog.monitor import Monitor

from ...helpers.obedient import killed_later, run_python
from .members import MONITOR, SECRET, Member
from .watching import Watch

PROGRAMS = {
    'computes': 'sum(range(10 ** 12))',
    'sleeps with the lock': 'import ctypes; ctypes.PyDLL(None).sleep(600)',
    'looks for work': 'while True: time.sleep(0.001)',
    'waits': 'threading.Event().wait()',
}

#: A thread that wants the interpreter lock, beside the main thread.
BEAT = """
import threading, time
def beat():
    while True: time.sleep(0.01)
threading.Thread(target=beat, daemon=True).start()
print('up', flush=True)
"""


@pytest.fixture
def run():
    """Start programs without MXNet, which are killed after the test."""
    with killed_later() as take:
        yield lambda *program_and_arguments: take(run_python(*program_and_arguments))


@pytest.fixture
def program(run):
    """Start one of the programs beside a thread that wants the interpreter lock; gives the process."""
    def start(name):
        process = run(BEAT + PROGRAMS[name])
        assert process.stdout.readline() == 'up\n'
        return process

    return start


@pytest.fixture
def job():
    """Start members of one job; the monitor listens in this process, unless its address is given."""
    with killed_later() as take:
        def start(workers, servers=0, address=None, limits=None):
            monitor = Monitor('127.0.0.1', workers, servers, SECRET, limits) if address is None else None
            names = [('worker %d' % rank, rank) for rank in range(workers)]
            names += [('server %d' % number, -1) for number in range(servers)]
            members = [Member(address or monitor.address, name, rank) for name, rank in names]
            for member in members:
                take(member.process)
            assert [member.answer() for member in members] == ['ok'] * len(members)
            return (monitor, *members) if address is None else members

        yield start


@pytest.fixture
def monitor_process(run):
    """Start the process of a monitor, which runs `text`, too; gives the process and the monitor's address."""
    def start(text='', *args, silence_s=4):
        process = run(MONITOR + text + 'sys.stdin.read()', *args, silence_s)
        host, port = process.stdout.readline().split()
        return process, (host, int(port))

    return start


@pytest.fixture
def pair():
    """A failure detector that watches two workers, on hosts a and b."""
    return Watch(2, worker0='a', worker1='b')
