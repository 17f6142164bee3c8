"""SIGTERM ends a process after a delay, in which it may write the reason, and ends its children at once."""
import os
import signal
import subprocess
import sys
import time

import pytest

from mxhybrid.lane import library

pytestmark = pytest.mark.both_pythons

#: Delays SIGTERM by its first argument, runs its second one, and waits.
PROGRAM = """
import os, signal, subprocess, sys, threading, time

from mxhybrid.lane import library
def delay():
    return library.load().delay_sigterm(float(sys.argv[1]))
exec(sys.argv[2])
print('ready', flush=True)
time.sleep(60)
"""
#: Seconds in which a process must be over that nothing delays.
PROMPT_S = 20.0


def run(delay_s, code, signals=1):
    """Send SIGTERM to the program once it is ready; return its output, its status, and the time of the first signal."""
    with subprocess.Popen([sys.executable, '-c', PROGRAM, str(delay_s), code], stdout=subprocess.PIPE,
                          text=True) as process:
        try:
            lines = [process.stdout.readline()]
            began = time.monotonic()
            for _ in range(signals):
                process.send_signal(signal.SIGTERM)
                time.sleep(0.05)  # signals that are pending at once are one signal
            lines += process.communicate(timeout=PROMPT_S)[0].splitlines()
        finally:
            process.kill()
    return [line.strip() for line in lines], process.returncode, began


def test_other_threads_go_on_for_a_while():
    code = """
assert delay() == 1
def write():
    while True:
        time.sleep(0.1)
        print(time.monotonic(), flush=True)
threading.Thread(target=write, daemon=True).start()
"""
    lines, status, began = run(1.5, code)
    assert lines[0] == 'ready' and float(lines[-1]) > began + 0.1
    assert status == -signal.SIGTERM and time.monotonic() >= began + 1.5


def test_a_second_signal_ends_at_once():
    lines, status, _ = run(60, 'assert delay() == 1', signals=2)
    assert lines == ['ready'] and status == -signal.SIGTERM


@pytest.mark.parametrize('child', ['os.fork() or time.sleep(60)', "subprocess.Popen(['sleep', '60']).pid"])
def test_children_end_at_once(child):
    lines, status, _ = run(0.1, """
assert delay() == 1
pid = %s
time.sleep(0.5)
os.kill(pid, signal.SIGTERM)
print(os.waitpid(pid, 0)[1], flush=True)
""" % child)
    assert lines[0] == str(int(signal.SIGTERM)) and status == -signal.SIGTERM


@pytest.mark.parametrize('before', [True, False])
def test_a_handler_of_the_script_is_kept(before):
    calls = ["signal.signal(signal.SIGTERM, lambda *_: (print('handled', flush=True), os._exit(3)))",
             'assert delay() == %d' % (not before)]
    lines, status, _ = run(60, '\n'.join(calls if before else calls[::-1]))
    assert lines == ['ready', 'handled'] and status == 3


def test_an_ignored_signal_stays_ignored():
    former = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert library.load().delay_sigterm(0.0) == 0
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, former)
