"""Redistributions as operators of MXNet's graph."""
import threading
import types

import mxnet as mx
import pytest

from mxhybrid.native.engine import Deferred
from mxhybrid.parallel.ops.graph import Graph
from mxhybrid.parallel.redistribution.redistribution_operator import RedistributionOperator, Transport
from mxhybrid.parallel.runtime.fetched_inputs import TOKEN
from mxhybrid.parallel.runtime.rank_program import Program
from mxhybrid.parallel.sharding.split import Split
from mxhybrid.planner.calibration.redistribution_workload import RedistributionChain, shifted

from ....helpers.split_programs import program_spec


class SlowTransport(Transport):
    """Makes the first transfer when it is told to, and later ones at once; notes when transfers are released."""

    def __init__(self, events):
        self.begun, self._events = threading.Event(), events
        self._deferred = Deferred(self._begin)

    def push_views(self, transfer, source, target, arrays, priority):
        self._deferred.push(arrays, transfer, priority)

    def _begin(self, transfer, done):
        if self.begun.is_set():
            done()
            return
        self.done = done
        self.begun.set()

    def forget(self, transfers):
        self._events.append('released')


def make_node(transport):
    return lambda redistribution, differentiable: RedistributionOperator(redistribution, transport, differentiable,
                                                                         lambda error: None)


def network(transport):
    """Return the program of rank 0 of 2 for a network that is split by columns, after it has begun a forward pass."""
    graph = Graph(mx.sym.sin(mx.sym.var('data', shape=(2, 4), dtype='float32')), {'data': (2, 4)}, {'data': 'float32'})
    spec = program_spec(graph, {operator.number: Split((1, 2), (0, 1)) for operator in graph.computing}, 2)
    program = Program(spec, 0, make_node(transport), 0)
    inputs = {'data': mx.nd.ones((1, 4)), TOKEN: mx.nd.zeros(1)}
    mx.nd.CachedOp(program.symbol)(*[inputs[name] for name in program.symbol.list_inputs()])
    return program


def chain(transport):
    """Return a chain of one redistribution of the calibration, after it has begun a forward pass."""
    workers = types.SimpleNamespace(rank=0, size=2, transport=transport, reserve_numbers=lambda count: 0,
                                    make_node=make_node(transport))
    begun = RedistributionChain(workers, 1, shifted([[0, 1]], 1, 1), 1)
    threading.Thread(target=begun.forward, daemon=True).start()  # it waits for the result
    return begun


@pytest.mark.parametrize('begin', [network, chain])
def test_transfers_under_way_are_done_before_they_are_released(begin, monkeypatch):
    events, waitall = [], mx.nd.waitall
    transport = SlowTransport(events)

    def finish():
        assert transport.begun.wait(30)
        events.append('done')
        transport.done()

    def finish_and_wait():
        if not events:
            finish()
        waitall()
    begun = begin(transport)
    # The transfer ends while somebody waits for it.
    monkeypatch.setattr(mx.nd, 'waitall', finish_and_wait)
    try:
        begun.forget()
    finally:
        monkeypatch.undo()
        if 'done' not in events:  # an operation that does not end would hold the next tests
            finish()
        waitall()
    assert events[0] == 'done' and set(events[1:]) == {'released'}
