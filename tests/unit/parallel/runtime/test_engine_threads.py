"""Threads that give operations to the engine."""
import gc
import threading
import time
import weakref

import pytest

from mxhybrid.base.errors import InputError
from mxhybrid.parallel.runtime.engine_threads import IDLE, CallingThread, SegmentThreads


@pytest.fixture
def threads():
    segment_threads = SegmentThreads()
    yield segment_threads
    segment_threads.close()


def test_each_pass_has_a_thread_of_its_own(threads):
    names = []
    for _ in range(2):
        threads.forward(lambda: names.append(threading.current_thread().name))
        threads.backward(lambda: names.append(threading.current_thread().name))
    assert names == ['mxhybrid-segment', 'mxhybrid-again'] * 2


def test_errors_come_back_to_the_caller(threads):
    def fail(text):
        raise ValueError(text)

    with pytest.raises(ValueError, match='of the second'):
        threads.backward(fail, 'of the second pass')
    threads.backward(int)  # the thread goes on


def test_arguments_are_not_kept(threads):
    class Array:
        """An object with a weak reference."""

    array = Array()
    reference = weakref.ref(array)
    threads.forward(lambda _: None, array)
    del array
    threads.forward(int)
    assert reference() is None


def test_results_come_back_to_the_caller():
    thread = CallingThread('mxhybrid-test')
    assert thread.call(max, 3, 5) == 5
    thread.close()


@pytest.mark.parametrize('closes', [1, 2])
def test_a_call_after_the_end_is_refused(closes):
    thread = CallingThread('mxhybrid-test')
    for _ in range(closes):
        thread.close()
    with pytest.raises(InputError, match=r'called after its forget\(\), which ended its thread mxhybrid-test: call it '
                                         'before, or parallelize the network again'):
        thread.call(int)


def _await_idle(thread):
    deadline = time.monotonic() + 60
    while thread.name != IDLE:
        assert time.monotonic() < deadline, thread.name
        time.sleep(0.001)


@pytest.mark.parametrize('end', ['close', 'drop'])
def test_a_thread_that_no_object_has_is_used_again(end):
    """MXNet keeps memory for each thread that has given it operations until the process ends."""
    first = CallingThread('mxhybrid-test')
    running = first.call(threading.current_thread)
    assert running.name == 'mxhybrid-test'
    if end == 'close':
        first.close()
    del first
    gc.collect()
    _await_idle(running)
    second, third = CallingThread('mxhybrid-second'), CallingThread('mxhybrid-third')
    assert second.call(threading.current_thread) is running
    assert running.name == 'mxhybrid-second'
    assert third.call(threading.current_thread) is not running
