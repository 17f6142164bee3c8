"""Processes of a job with lifelines, which run statements on their standard input."""
import select

from mxhybrid.watchdog.leaving import ABORT_STATUS

from ...helpers.obedient import Obedient

LIMIT_S = 30
SECRET = 'open sesame'

LIFELINE = """
import os, time
from mxhybrid.watchdog import lifeline
from mxhybrid.watchdog.lifeline import Lifeline
lifeline.LAST_WORDS_S = 0.05
"""

MEMBER = LIFELINE + """
import ctypes, threading
line = Lifeline((sys.argv[2], int(sys.argv[3])), sys.argv[4], int(sys.argv[5]), 10, 'open sesame',
                lambda: os.write(2, b'cleaned up\\n'))

def wait_for(condition):
    while not condition():
        time.sleep(0.01)

def lose_the_lock(seconds):
    send, lost = line._sender.send, threading.Event()
    def send_and_lose_it(message):
        line._sender.send = send
        sent = send(message)
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
        lost.set()
        return sent
    line._sender.send = send_and_lose_it
    line._heartbeat.sample_monitor = lambda: None  # as on a host without a process that sees the monitor's
    lost.wait()
"""

#: Its last argument is the limit of silence, in seconds.
MONITOR = """
from mxhybrid.base.settings import Limits
from mxhybrid.watchdog.monitor import Monitor
monitor = Monitor('127.0.0.1', 2, 0, 'open sesame', Limits(silence=float(sys.argv[-1])))
print('%s %d' % monitor.address, flush=True)
"""

SERVER = LIFELINE + """
line = Lifeline((sys.argv[2], int(sys.argv[3])), 'a server', -1, 10, 'open sesame')
while line._heartbeat.monitor is None:
    time.sleep(0.01)
print('heard of the monitor', flush=True)
time.sleep(600)
"""

#: In the monitor's process: starts the server, which the kernel ends together with it (PR_SET_PDEATHSIG).
CHILD = """
import ctypes, signal, subprocess
child = subprocess.Popen([sys.executable, '-S', '-c', sys.argv[2], sys.argv[1], *map(str, monitor.address)],
                         preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL))
"""


#: Statements of members.
CALL, FINISH = "line.count_call('a push')", 'assert line.finish()'


class Member(Obedient):
    """A process of the job, with a lifeline to the monitor."""

    def __init__(self, address, name, rank):
        super().__init__(MEMBER, *address, name, rank)
        self.name = name

    def silent(self, seconds):
        """Return whether the process writes nothing for some time."""
        return not select.select([self.process.stdout], [], [], seconds)[0]

    def end(self):
        """Wait for the end; return the exit status and standard error."""
        _, text = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, text


def last_words(member):
    """Return the output of a process that ended by itself, and cleaned up before."""
    member.process.wait(LIMIT_S)  # its standard input stays open: no other reason to end
    status, stderr = member.end()
    assert status == ABORT_STATUS == 1
    assert stderr.startswith('[mxhybrid] ') and stderr.endswith('cleaned up\n')
    return stderr


def check_aborted(text, *members):
    """Check that processes ended by themselves because of `text`."""
    for member in members:
        said = last_words(member)
        assert text in said, said


def meet(*members):
    """Wait until the monitor and these processes know each other, and can sample each other."""
    for member in members:
        member.do('wait_for(lambda: line._heartbeat.monitor is not None)')


def call(member, count=1):
    """Let a process begin some collective calls."""
    for _ in range(count):
        member.do(CALL)


def finish(*members):
    """Let the scripts of all workers end; then each of them is released."""
    for member in members:
        member.say(FINISH)
    assert [member.answer() for member in members] == ['ok'] * len(members)


def finish_first(first, other):
    """Let the script of worker 0 end, and wait until another one knows."""
    first.say(FINISH)
    other.do('wait_for(lambda: 0 in line._ended)')


def leave(*members):
    """Let processes that were released leave, and wait for their end."""
    for member in members:
        member.do('line.bye()')
    assert [member.end() for member in members] == [(0, '')] * len(members)
