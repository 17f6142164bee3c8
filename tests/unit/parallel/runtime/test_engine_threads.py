"""Threads that give segments to the engine."""
import threading
import weakref

import pytest

from mxhybrid.parallel.runtime.engine_threads import SegmentThreads


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
