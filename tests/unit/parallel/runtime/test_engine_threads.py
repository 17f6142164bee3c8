"""Threads that give operations to the engine."""
import gc
import threading
import time
import weakref

import pytest

from mxhybrid.base.errors import InputError
from mxhybrid.parallel.runtime import engine_threads
from mxhybrid.parallel.runtime.engine_threads import CallingThread, SegmentThreads


@pytest.fixture
def threads():
    segment_threads = SegmentThreads(CallingThread('mxhybrid-test-forward'), CallingThread('mxhybrid-test-backward'))
    yield segment_threads
    for thread in segment_threads:
        thread.close()


def test_each_pass_has_a_thread_of_its_own(threads):
    names = []
    for _ in range(2):
        threads.forward.call(lambda: names.append(threading.current_thread().name))
        threads.backward.call(lambda: names.append(threading.current_thread().name))
    assert names == ['mxhybrid-test-forward', 'mxhybrid-test-backward'] * 2


def test_results_and_errors_come_back_to_the_caller(threads):
    with pytest.raises(ValueError, match='no number'):
        threads.backward.call(int, 'no number')
    assert threads.backward.call(max, 3, 5) == 5  # the thread goes on


def test_arguments_are_not_kept(threads):
    class Array:
        """An object with a weak reference."""

    array = Array()
    reference = weakref.ref(array)
    threads.forward.call(lambda _: None, array)
    del array
    threads.forward.call(int)
    assert reference() is None


@pytest.mark.parametrize('closes', [1, 2])
def test_a_call_after_the_end_is_refused(closes):
    thread = CallingThread('mxhybrid-test')
    for _ in range(closes):
        thread.close()
    with pytest.raises(InputError, match=r'called after its release\(\), which released its thread mxhybrid-test: call '
                                         'it before, or parallelize the network again'):
        thread.call(int)


@pytest.mark.parametrize('releases', ['close', 'no reference', 'close and no reference'])
def test_threads_that_are_released_are_used_again(releases):
    """MXNet keeps what it has allocated for a thread."""
    name = 'mxhybrid-test %s' % releases
    thread = CallingThread(name)
    first = thread.call(threading.current_thread)
    if 'close' in releases:
        thread.close()
    del thread
    gc.collect()
    deadline = time.monotonic() + 60
    while not engine_threads._unused[name]:
        assert time.monotonic() < deadline
    others = [CallingThread(name) for _ in range(2)]
    threads = [other.call(threading.current_thread) for other in others]
    assert threads[0] is first and threads[1] is not first
    for other in others:
        other.close()
