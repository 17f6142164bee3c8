"""Threads that give operations to the engine."""
import gc
import threading
import weakref

import pytest

from mxhybrid.base.errors import InputError
from mxhybrid.parallel.runtime.engine_threads import CallingThread, SegmentThreads


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


def test_a_thread_ends_with_its_last_reference():
    thread = CallingThread('mxhybrid-test')
    running = thread.call(threading.current_thread)
    assert running.is_alive()
    del thread
    gc.collect()
    running.join(timeout=60)
    assert not running.is_alive()
