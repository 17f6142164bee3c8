"""A relu that alone reads a BatchNorm with joint statistics is part of its operator, and so is a pooling after it."""
import json

import pytest
from mxnet import gluon
from mxnet.gluon import nn

from mxhybrid.parallel.ops.registry import collectives
from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.strategies import grid
from mxhybrid.parallel.runtime.input_shards import InputShards
from mxhybrid.parallel.runtime.network_shards import NetworkShards
from mxhybrid.parallel.runtime.rank_program import ProgramSpec
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




def pooled(F, data, **settings):
    return F.Pooling(data, **{'kernel': (2, 2), 'stride': (2, 2), 'pool_type': 'max', **settings})


POOLED = {
    'relu and pooling': (lambda F, x, last: last(pooled(F, F.relu(x))), 8, True),
    'pooling': (lambda F, x, last: last(pooled(F, x)), 8, True),
    'output': (lambda F, x, last: pooled(F, F.relu(x)), 8, True),
    'full convention': (lambda F, x, last: last(pooled(F, x, pooling_convention='full')), 8, True),
    'odd images': (lambda F, x, last: last(pooled(F, F.relu(x))), 9, False),
    'strips that windows lie across': (lambda F, x, last: last(pooled(F, F.relu(x))), 10, False),
    'read twice': (lambda F, x, last: (lambda y: [last(pooled(F, y)), last(y)])(F.relu(x)), 8, False),
    'relu and its output': (lambda F, x, last: (lambda y: [last(pooled(F, y)), y])(F.relu(x)), 8, False),
    'overlapping windows': (lambda F, x, last: last(pooled(F, x, kernel=(3, 3), pad=(1, 1))), 8, False),
    'padding': (lambda F, x, last: last(pooled(F, x, pad=(1, 1))), 8, False),
    'averages': (lambda F, x, last: last(pooled(F, x, pool_type='avg')), 8, False),
    'whole images': (lambda F, x, last: pooled(F, x, global_pool=True), 8, False)}


def ops_of(after, relu_plan=None, size=8):
    """Return the names of the operators that rank 0 of two computes; a relu may have a plan of its own."""
    net = Network(after)
    net.initialize()
    network = traced(net, (4, 3, size, size))
    splits = dict(grid(domain=(2,)).resolve(network.graph, network.dimensions, 2).splits)
    if relu_plan is not None:
        relu_splits = relu_plan.resolve(network.graph, network.dimensions, 2).splits
        splits.update({operator.number: relu_splits[operator.number] for operator in network.graph.computing
                       if operator.op == 'relu'})
    shards = NetworkShards(network.graph, splits)
    input_shards = InputShards(network.graph, network.axes, network.dimensions, 2, 0, set())
    program = local_program(ProgramSpec(shards, input_shards.inputs, input_shards.outputs, collectives()), 0)
    return [node['op'] for node in json.loads(program.symbol.tojson())['nodes']]


@pytest.mark.parametrize('case', CASES)
def test_the_only_reader_is_part_of_the_operator(case):
    after, is_part = CASES[case]
    ops = ops_of(after)
    assert '_NDArray' in ops and 'BatchNorm' not in ops
    assert (not {'relu', 'Activation'} & set(ops)) == is_part, ops


def test_a_reader_with_another_split_stays_an_operator():
    ops = ops_of(CASES['relu'][0], grid(batch=2))
    assert '_NDArray' in ops and 'relu' in ops


@pytest.mark.parametrize('case', POOLED)
def test_a_halving_pooling_is_part_of_the_operator(case):
    after, size, is_part = POOLED[case]
    ops = ops_of(after, size=size)
    assert '_NDArray' in ops and 'BatchNorm' not in ops
    assert ('Pooling' not in ops) == is_part, ops
