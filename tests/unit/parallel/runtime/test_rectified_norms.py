"""A relu that alone reads a BatchNorm with joint statistics is part of its operator."""
import json

import pytest
from mxnet import gluon
from mxnet.gluon import nn

from mxhybrid.parallel.ops.registry import collectives
from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.strategies import grid
from mxhybrid.parallel.runtime.input_shards import InputShards
from mxhybrid.parallel.runtime.network_shards import NetworkShards
from mxhybrid.planner.profiling.local_program import local_program


class Network(gluon.HybridBlock):
    """A convolution, a BatchNorm, and operators after it that `after` adds."""

    def __init__(self, after):
        super().__init__(prefix='net_')
        self._after = after
        with self.name_scope():
            self.first, self.norm = nn.Conv2D(4, 3, padding=1, in_channels=3), nn.BatchNorm(in_channels=4)
            self.last = nn.Conv2D(4, 3, in_channels=4)

    def hybrid_forward(self, F, data):
        normalized = self.norm(self.first(data))
        return self._after(F, normalized, self.last)


CASES = {
    'relu': (lambda F, x, last: last(F.relu(x)), True),
    'activation': (lambda F, x, last: last(F.Activation(x, act_type='relu')), True),
    'output': (lambda F, x, last: F.relu(x), True),
    'read twice': (lambda F, x, last: last(F.relu(x)) + last(x), False),
    'read and returned': (lambda F, x, last: [last(F.relu(x)), x], False),
    'another function': (lambda F, x, last: last(F.Activation(x, act_type='tanh')), False),
    'read by a convolution': (lambda F, x, last: F.relu(last(x)), False)}


def ops_of(after, relu_plan=None):
    """Return the names of the operators that rank 0 of two computes; a relu may have a plan of its own."""
    net = Network(after)
    net.initialize()
    network = traced(net, (4, 3, 8, 8))
    splits = dict(grid(domain=(2,)).resolve(network.graph, network.dimensions, 2).splits)
    if relu_plan is not None:
        relu_splits = relu_plan.resolve(network.graph, network.dimensions, 2).splits
        splits.update({operator.number: relu_splits[operator.number] for operator in network.graph.computing
                       if operator.op == 'relu'})
    shards = NetworkShards(network.graph, splits)
    input_shards = InputShards(network.graph, network.axes, network.dimensions, 2, 0, set())
    program = local_program(shards, 0, input_shards.inputs, input_shards.outputs, collectives())
    return [node['op'] for node in json.loads(program.symbol.tojson())['nodes']]


@pytest.mark.parametrize('case', CASES)
def test_the_only_reader_is_part_of_the_operator(case):
    after, is_part = CASES[case]
    ops = ops_of(after)
    assert '_NDArray' in ops and 'BatchNorm' not in ops
    assert (not {'relu', 'Activation'} & set(ops)) == is_part, ops


def test_a_reader_with_another_split_is_an_operator_of_its_own():
    ops = ops_of(CASES['relu'][0], grid(batch=2))
    assert '_NDArray' in ops and 'relu' in ops
