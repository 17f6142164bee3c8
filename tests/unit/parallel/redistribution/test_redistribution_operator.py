"""Redistributions as operators of MXNet's graph."""
import threading

import mxnet as mx
import numpy as np

from mxhybrid.parallel.redistribution.redistribution import Redistribution
from mxhybrid.parallel.redistribution.redistribution_operator import CarrierTransport, RedistributionOperator
from mxhybrid.parallel.sharding.layout import Layout


class SlowCarrier:
    """Makes a transfer when it is told to."""

    def __init__(self):
        self.begun = threading.Event()

    def begin(self, transfer, source, target, done):
        self.done = done
        self.begun.set()


class WatchedTransport(CarrierTransport):
    """Notes when transfers are released."""

    def __init__(self, carrier, events):
        super().__init__(carrier)
        self._events = events

    def forget(self, transfers):
        self._events.append('released')


def test_transfers_under_way_are_done_before_they_are_released(monkeypatch):
    events, carrier, waitall = [], SlowCarrier(), mx.nd.waitall
    whole = Layout((4,), {0: ((0, 4),)})
    operator = RedistributionOperator(Redistribution(1, 0, whole, whole.boxes, np.dtype('float64')),
                                      WatchedTransport(carrier, events), True, lambda error: None)
    symbol = mx.sym.Group(operator.symbol(mx.sym.var('token'), mx.sym.var('local')))

    def finish():
        assert carrier.begun.wait(30)
        events.append('done')
        carrier.done()

    def finish_and_wait():
        if not events:
            finish()
        waitall()
    # The transfer ends while somebody waits for it.
    monkeypatch.setattr(mx.nd, 'waitall', finish_and_wait)
    mx.nd.CachedOp(symbol)(mx.nd.zeros(1), mx.nd.ones(4, dtype='float64'))
    operator.forget()
    monkeypatch.undo()
    if 'done' not in events:  # an operation that does not end would hold the next tests
        finish()
    waitall()
    assert events == ['done', 'released']
