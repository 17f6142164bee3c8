"""Networks that no script refers to are noted by a finalizer, and released by the thread of the script."""
import gc
import threading
import time

import mxnet as mx
import pytest
from mxnet import autograd

from mxhybrid.native.engine import Deferred
from mxhybrid.parallel.runtime import dropped_networks
from mxhybrid.parallel.runtime.call_pool import _new_token
from mxhybrid.parallel.runtime.dropped_networks import collect_dropped, release_after, release_dropped


class Owner:
    """An object in a cycle, as networks are."""

    def __init__(self):
        self.itself = self


def drop(released, note=True, is_done=lambda: True, last=()):
    """Let the collector find a network whose release appends a note."""
    release_after(Owner(), is_done, lambda: released.append(note), last)
    gc.collect()


@pytest.fixture(autouse=True)
def others():
    """Networks of other tests wait until these tests are over."""
    before = list(dropped_networks._dropped)
    dropped_networks._dropped.clear()
    yield
    dropped_networks._dropped.extend(before)


def test_the_calling_thread_releases_collected_networks():
    released, owner = [], Owner()
    release_after(owner, lambda: True, lambda: released.append(threading.current_thread()))
    release_dropped()
    assert released == []
    del owner
    collecting = threading.Thread(target=gc.collect)
    collecting.start()
    collecting.join()
    assert released == []
    release_dropped()
    release_dropped()
    assert released == [threading.current_thread()]


def test_only_own_backward_passes_are_waited_for():
    begun, released = [], []
    drop(released, 'waits', lambda: bool(begun))
    drop(released, 'done')
    release_dropped()
    assert released == ['done']
    begun.append(True)
    release_dropped()
    assert released == ['done', 'waits']


def test_a_forgotten_network_is_not_released_again():
    released, owner = [], Owner()
    release_after(owner, lambda: True, lambda: released.append(True)).detach()
    del owner
    gc.collect()
    release_dropped()
    assert released == []


def failed():
    """An array whose operation fails in the engine."""
    return mx.nd.linalg.potrf(-mx.nd.eye(2))


def test_a_network_is_released_although_an_operation_failed():
    released, other = [], failed()
    drop(released, last=[failed()])
    release_dropped(waits=True)
    assert released == [True]
    with pytest.raises(mx.base.MXNetError, match='potrf failed'):
        other.wait_to_read()
    with pytest.raises(mx.base.MXNetError, match='potrf failed'):
        mx.nd.waitall()
    mx.nd.waitall()


def test_an_unending_redistribution_delays_no_call_twice(monkeypatch):
    monkeypatch.setattr(dropped_networks, 'PATIENCE_S', 0.1)
    ends, released, token, begun = [], [], mx.nd.zeros(1), threading.Event()
    transfers = Deferred(lambda _, done: (ends.append(done), begun.set()))
    transfers.push([token], None)
    drop(released, last=[token])
    release_dropped(waits=True)
    monkeypatch.setattr(threading.Event, 'wait', None)
    release_dropped(waits=True)
    release_dropped()
    monkeypatch.undo()
    assert released == []
    assert begun.wait(60)
    ends.pop()()
    mx.nd.waitall()
    release_dropped()
    assert released == [True]


def test_networks_in_cycles_need_no_collection():
    gc.collect()
    gc.disable()
    try:
        released = []
        release_after(Owner(), lambda: True, lambda: released.append(True))
        release_dropped()
        assert released == []
        collect_dropped()
        release_dropped()
        assert released == [True]
    finally:
        gc.enable()


def test_a_token_shows_whether_there_is_a_graph():
    token, calls = _new_token()
    with autograd.record():
        output = token * mx.nd.ones(1)
        others = [output * 2, output * 3]
    del token, output
    for other in others:
        gc.collect()
        assert calls() is not None
        other.backward(retain_graph=other is others[0])
    mx.nd.waitall()
    others.clear()
    del other
    deadline = time.monotonic() + 60
    while calls() is not None:  # MXNet's thread releases the last reference a little after the operation
        assert time.monotonic() < deadline
