"""Operations of MXNet's engine: order, events, threads, and the last error of a thread."""
import threading

import mxnet as mx
import numpy as np
import pytest

from mxhybrid.native.engine import _CALLS, Deferred, when_ready, when_written
from mxhybrid.native.last_error import expected_errors, take_last_error
from mxhybrid.native.symbols import wants_gradient

pytestmark = pytest.mark.both_pythons


def test_callbacks_see_an_array_between_two_writes():
    array = mx.nd.zeros((300, 300))
    order = []

    class Write(mx.operator.CustomOp):
        """An operation of the engine that says when it runs."""

        def __init__(self, number):
            super().__init__()
            self._number = number

        def forward(self, is_train, req, in_data, out_data, aux):
            order.append(self._number)

    @mx.operator.register('mxhybrid_test_write')
    class WriteProp(mx.operator.CustomOpProp):
        def __init__(self, number):
            super().__init__(need_top_grad=False)
            self._write = Write(int(number))

        def create_operator(self, ctx, shapes, dtypes):
            return self._write

    for step in range(5):
        mx.nd.Custom(array, op_type='mxhybrid_test_write', number=step, out=array)
        when_ready(array, lambda step=step: order.append('after %d' % step))
    mx.nd.waitall()
    assert order == [item for step in range(5) for item in (step, 'after %d' % step)]


def test_many_callbacks_on_several_arrays():
    arrays = [mx.nd.ones((50, 50)) for _ in range(4)]
    seen, waiting = [], len(_CALLS._waiting)
    for number in range(400):
        array = arrays[number % 4]
        array += 1
        when_ready(array, lambda number=number: seen.append(number), priority=number)
    mx.nd.waitall()
    assert sorted(seen) == list(range(400))
    assert len(_CALLS._waiting) == waiting


def test_an_operation_waits_for_and_delays_writes():
    begun, has_begun, may_end = [], threading.Event(), threading.Event()

    def start(operation, complete):
        begun.append((operation, array_view.copy()))

        def operate():
            may_end.wait(10)
            array_view[:] = 10
            complete()
        threading.Thread(target=operate).start()
        has_begun.set()

    array_view = np.zeros(1000, np.float32)
    array, other = mx.nd.from_numpy(array_view.view(), zero_copy=True), mx.nd.zeros(3)
    deferred = Deferred(start)
    array += 5
    deferred.push([array, other], 'first')
    array += 1
    copied = array.copy()
    free = mx.nd.ones(3) + 1
    np.testing.assert_array_equal(free.asnumpy(), 2)  # the engine goes on with everything else
    assert has_begun.wait(10)
    may_end.set()
    np.testing.assert_array_equal(copied.asnumpy(), 11)
    (what, found), = begun
    assert what == 'first'
    np.testing.assert_array_equal(found, 5)


def test_an_event_is_set_after_failed_writes():
    operations = []
    begun = threading.Event()
    deferred = Deferred(lambda _, done: (operations.append(done), begun.set()))
    array = mx.nd.zeros(1)
    deferred.push([array], None)
    failed = mx.nd.linalg.potrf(-mx.nd.eye(2))
    assert when_written([failed]).wait(60)
    event = when_written([array, failed])
    assert begun.wait(60) and not event.is_set()
    operations.pop()()
    assert event.wait(60)
    with pytest.raises(mx.base.MXNetError, match='potrf failed'):
        failed.asnumpy()


def fail():
    with pytest.raises(mx.base.MXNetError):
        mx.nd.linalg.potrf(-mx.nd.eye(2)).asnumpy()


@pytest.fixture(autouse=True)
def earlier():
    take_last_error()


def test_each_error_is_returned_once():
    assert take_last_error() == ''
    for _ in range(2):
        fail()
        assert 'potrf failed' in take_last_error()
        assert take_last_error() == ''


def test_it_has_one_line_without_a_stack():
    fail()
    text = take_last_error()
    assert text.startswith('Check failed: ') and '\n' not in text and 'Stack trace' not in text


def test_expected_errors_keep_the_error_before_them():
    with expected_errors():
        fail()
    assert not wants_gradient(mx.nd.ones(1))
    assert take_last_error() == ''
    fail()
    assert not wants_gradient(mx.nd.ones(1))
    assert 'potrf failed' in take_last_error()


def test_other_threads_have_their_own():
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    assert take_last_error() == ''
