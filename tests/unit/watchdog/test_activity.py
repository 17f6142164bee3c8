"""The activity of a process, by the CPU time of its threads, and the probes that sample it for other hosts."""
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from mxhybrid.base import proc
from mxhybrid.watchdog import activity, identity
from mxhybrid.watchdog.activity import Activity, sample_threads
from mxhybrid.watchdog.liveness_probe import MAX_ANSWER_BYTES, PROBE_S, query_probe, serve_samples

from .conftest import PROGRAMS

pytestmark = pytest.mark.both_pythons


def watched(pid, count=4):
    """Sample the threads of a process until there are `count` verdicts about its activity; return them."""
    seen, answers = Activity(), []
    while len(answers) < count:
        seen.add_sample(sample_threads(pid))
        if seen.is_computing is not None:
            answers.append(seen.is_computing)
            seen.is_computing = None
        time.sleep(0.3)  # between two samples
    return answers


@pytest.mark.parametrize('name', PROGRAMS)
def test_only_a_process_that_computes_is_seen_computing(program, name):
    # Each sample that shows computing ends the silence: on a busy machine one such sample is enough.
    assert any(watched(program(name).pid)) is (name == 'computes')


def test_a_stopped_process_does_not_compute(program):
    process = program('computes')
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert watched(process.pid, 1) == [False]


def test_samples_without_scheduler_statistics_suffice(program, monkeypatch):
    times_of, paths = proc._times_of, []

    def open_without_statistics(path):
        paths.append(path)
        if path.endswith('schedstat'):
            raise FileNotFoundError(path)
        return os.fdopen(os.open(path, os.O_RDONLY))

    def times_without_statistics(directory):
        with monkeypatch.context() as patch:
            patch.setattr('builtins.open', open_without_statistics)
            return times_of(directory)

    monkeypatch.setattr(proc, '_times_of', times_without_statistics)
    # Without statistics, the time for which a thread waits for a CPU is not known, and it waits on a busy machine.
    monkeypatch.setattr(activity, 'RUNNABLE_SHARE', activity.RUN_SHARE)
    assert [watched(program(name).pid, 1) for name in ('computes', 'waits')] == [[True], [False]]
    assert any(path.endswith('/stat') for path in paths)


def test_a_process_that_has_gone_has_no_sample(program):
    process = program('waits')
    process.kill()
    process.wait()
    assert sample_threads(process.pid) is None and not Activity().add_sample(None)


@pytest.mark.parametrize('ran, waited, turns, computes', [
    (0.02, 0.98, 8, True),     # 100 computing processes on 2 cores
    (0.02, 0.97, 400, False),  # a polling thread beside them
    (0.02, 0.40, 8, False), (0.0, 0.0, 0, False), (0.0, 1.0, 0, False)])
def test_a_thread_with_a_small_share_computes(ran, waited, turns, computes):
    seen = Activity()
    seen.add_sample({'time_s': 5.0, 'threads': {'1': [3.0, 7.0, 90]}})
    assert seen.add_sample({'time_s': 6.0, 'threads': {'1': [3.0 + ran, 7.0 + waited, 90 + turns]}}) is computes


#: A process that gets 1.4 % of a core, since another one of the same group of the scheduler computes there.
CROWDED = """
import os, signal, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
other = os.fork()
if not other:
    signal.alarm(60)
    sum(range(10 ** 12))
os.nice(19)
print('up', flush=True)
end = time.monotonic() + 50
while time.monotonic() < end:
    pass
os.kill(other, signal.SIGKILL)
"""


def test_a_process_on_a_crowded_core_computes():
    command = [sys.executable, '-S', '-c', CROWDED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout.readline() == b'up\n'
        try:
            # Beside other busy processes it gets no turn at all between most samples.
            assert any(any(watched(process.pid, 1)) for _ in range(20))
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_threads_that_come_and_go_do_not_count():
    seen = Activity()
    seen.add_sample({'time_s': 0.0, 'threads': {'1': [5.0, 0.0, 0], '2': [1.0, 0.0, 0]}})
    assert not seen.add_sample({'time_s': 1.0, 'threads': {'1': [5.0, 0.0, 0], '3': [9.0, 0.0, 0]}})
    assert seen.is_computing is False
    assert seen.add_sample({'time_s': 2.0, 'threads': {'1': [5.05, 0.9, 0], '3': [9.0, 0.0, 0]}})
    seen.reset()
    assert seen.is_computing is None and not seen.add_sample({'time_s': 3.0, 'threads': {'1': [6.0, 0.0, 0]}})


# ------------------------------------------------------------------------------------------ liveness probes


def test_a_probe_answers_every_client(program):
    process = program('computes')
    known = dict(identity.this_process(), pid=process.pid, started=proc.state_and_start(process.pid)[1])
    address = serve_samples('127.0.0.1', lambda: identity.sample_process(known))
    seen = Activity()
    while seen.is_computing is None:
        sample = query_probe(address)
        assert set(sample) == {'time_s', 'state', 'threads'} and str(process.pid) in sample['threads']
        assert sample['state'] in ('R', 'S')
        seen.add_sample(sample)
        time.sleep(0.3)
    assert seen.is_computing
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
