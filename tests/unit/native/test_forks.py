"""Forks while the engine has work that needs Python; each runs in a process of its own, since a deadlock stays."""
import os
import subprocess
import sys
import textwrap

import pytest
from lab.launchers import PYTHON_PATH

pytestmark = pytest.mark.both_pythons

#: Operations that a Python thread ends, a moment after an engine thread has begun them in Python.
BEGINNING = '''
import os, queue, subprocess, sys, threading, time
import mxnet as mx
from mxhybrid.native import forks
from mxhybrid.native.engine import Deferred

begun = queue.Queue()

def start(what, complete):
    begun.put(complete)
    time.sleep(LATE)  # still in Python after its end

deferred = Deferred(start)

def serve():
    while True:
        complete = begun.get()
        time.sleep(0.05)
        complete()

threading.Thread(target=serve, daemon=True).start()
forks.prepare(lambda: None)
array = mx.nd.zeros(3)

def child():
    """Return the report of a child about an array that an operation was to write."""
    pid = os.fork()
    if not pid:
        os._exit(int(array.sum().asscalar()) + 3)
    return os.waitpid(pid, 0)[1] >> 8
'''


def run(program, late=0.0, timeout=50):
    """The output of a process that runs BEGINNING and `program`."""
    text = BEGINNING.replace('LATE', repr(late)) + textwrap.dedent(program)
    done = subprocess.run([sys.executable, '-c', text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=timeout, env=dict(os.environ, PYTHONPATH=PYTHON_PATH))
    assert done.returncode == 0, done.stdout
    return done.stdout.split()


@pytest.mark.parametrize('late', [0.0, 0.2])
def test_a_fork_waits_for_operations_that_python_ends(late):
    assert run('''
        for _ in range(5):
            deferred.push([array], None)
            array += 1
            assert child() == int(array.sum().asscalar()) + 3
        print('done')''', late) == ['done']


@pytest.mark.parametrize('call', ["subprocess.run(['true'])", "subprocess.run(['true'], preexec_fn=os.getpid)",
                                  "subprocess.run(['true'], start_new_session=True, close_fds=False)",
                                  "subprocess._USE_VFORK = False; subprocess.run(['true'])",
                                  "os.system('true')"] + ["subprocess.run(['true'], user=os.getuid())"] * (
                                      sys.version_info >= (3, 9)))  # which has brought it
def test_other_ways_to_start_processes_wait_too(call):
    assert run('''
        for _ in range(5):
            deferred.push([array], None)
            %s
        print('done', flush=True)
        os._exit(0)  # at once: an engine thread is still in Python, or about to call it''' % call, 0.1) == ['done']


def test_other_threads_continue_once_the_fork_is_over():
    assert run('''
        stop = threading.Event()
        count = 0

        def train():
            global count
            other = mx.nd.zeros(3)
            while not stop.is_set():
                deferred.push([other], None)
                other.wait_to_read()
                count += 1

        thread = threading.Thread(target=train)
        thread.start()
        for _ in range(10):
            assert child() == 3
        before = count
        deadline = time.monotonic() + 20
        while count < before + 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        stop.set()
        thread.join(20)
        print('went on' if count >= before + 3 else count)''') == ['went', 'on']


def test_a_fork_waits_for_an_operation_being_pushed():
    assert run('''
        import contextlib
        from mxhybrid.native import engine

        engine.fork_guard, inside = contextlib.nullcontext(), threading.Event()

        def hand():
            with forks.fork_guard:
                inside.set()
                time.sleep(0.3)  # the fork has looked at the engine by then
                deferred.push([array], None)

        threading.Thread(target=hand).start()
        assert inside.wait(20)
        assert child() == 3
        print('done')''') == ['done']


@pytest.mark.parametrize('call', ["os.fork() or os._exit(0)",
                                  "subprocess.Popen(['true'], start_new_session=True)"])
def test_an_interrupted_fork_leaves_the_gate_open(call):
    assert run('''
        import signal
        subprocess._USE_VFORK = False

        def late(number, frame):
            raise TimeoutError

        signal.signal(signal.SIGALRM, late)
        waiting = threading.Thread(target=lambda: time.sleep(0.5) or go_on.set())
        go_on = threading.Event()

        def inside():
            with forks.fork_guard:
                entered.set()
                go_on.wait(20)

        entered, passed = threading.Event(), threading.Event()
        threading.Thread(target=inside).start()
        assert entered.wait(20)
        waiting.start()
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            %s
        except TimeoutError:
            pass

        def passes():
            with forks.fork_guard:
                passed.set()

        threading.Thread(target=passes, daemon=True).start()
        print('open' if passed.wait(20) else 'closed', flush=True)
        os._exit(0)''' % call)[-1] == 'open'


def test_an_error_of_an_operation_is_not_lost():
    assert run('''
        bad = mx.nd.array([1.0, 2.0])
        mx.nd.random.normal(loc=0, scale=-1, shape=(2,), out=bad)
        child()
        try:
            forks.fork_guard.check()
        except mx.base.MXNetError as error:
            print('raised')
        forks.fork_guard.check()''') == ['raised']


def test_a_child_runs_no_native_exit_handlers():
    assert run('''
        import atexit, ctypes
        libc = ctypes.CDLL(None)
        libc.on_exit(ctypes.cast(libc.abort, ctypes.c_void_p), None)  # stands for what waits for threads
        for status in (0, 3):
            pid = os.fork()
            if not pid:
                atexit.register(lambda: print('python', flush=True))
                sys.exit(status)
            assert os.waitpid(pid, 0)[1] == status << 8, status
        print('parent', flush=True)
        os._exit(0)''') == ['python', 'python', 'parent']


def test_a_child_may_fork_too():
    assert run('''
        pid = os.fork()
        if not pid:
            deferred = None
            array += 1
            os._exit(child())
        assert os.waitpid(pid, 0)[1] >> 8 == 6
        print('done')''') == ['done']
