"""The last error of MXNet in a thread is returned once, also if the same error comes again."""
import threading

import mxnet as mx
import pytest

from mxhybrid.native.last_error import expected_errors, take_last_error
from mxhybrid.native.recording import wants_gradient


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
