"""A relu that alone reads a BatchNorm with joint statistics is part of its operator, and so is a pooling after it."""
import json

import pytest
from mxnet.gluon import nn

from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.strategies import grid
from mxhybrid.planner.profiling.local_program import local_program

from ....helpers.gluon_nets import Net, initialised
from ....helpers.split_programs import program_spec, splits_of

#: Functions of a BatchNorm's output and a layer, and whether the relu is part of the BatchNorm's operator.
RECTIFIED = {
    'relu': (lambda F, x, last: last(F.relu(x)), True),
    'activation': (lambda F, x, last: last(F.Activation(x, act_type='relu')), True),
    'output': (lambda F, x, last: F.relu(x), True),
    'read twice': (lambda F, x, last: last(F.relu(x)) + last(x), False),
    'read and returned': (lambda F, x, last: [last(F.relu(x)), x], False),
    'another function': (lambda F, x, last: last(F.Activation(x, act_type='tanh')), False),
    'read by a convolution': (lambda F, x, last: F.relu(last(x)), False)}


def pooled(F, data, **settings):
    return F.Pooling(data, **{'kernel': (2, 2), 'stride': (2, 2), 'pool_type': 'max', **settings})


#: Such functions, the size of images, and whether the pooling is part of the operator.
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
    """Return the operators of rank 0 of two, which has the compiled BatchNorm; a relu may have a plan of its own."""
    net = Net(lambda: [nn.Conv2D(4, 3, padding=1, in_channels=3), nn.BatchNorm(in_channels=4),
                       nn.Conv2D(4, 3, in_channels=4)],
              lambda F, data, first, norm, last: after(F, norm(first(data)), last))
    network = traced(initialised(net), (4, 3, size, size))
    splits = splits_of(network, grid(domain=(2,)), 2)
    if relu_plan is not None:
        relu_splits = splits_of(network, relu_plan, 2)
        splits = {operator.number: (relu_splits if operator.op == 'relu' else splits)[operator.number]
                  for operator in network.graph.computing}
    program = local_program(program_spec(network.graph, splits, 2), 0)
    ops = [node['op'] for node in json.loads(program.symbol.tojson())['nodes']]
    assert '_NDArray' in ops and 'BatchNorm' not in ops
    return ops


@pytest.mark.parametrize('case', RECTIFIED)
def test_the_only_reader_is_part_of_the_operator(case):
    after, is_part = RECTIFIED[case]
    ops = ops_of(after)
    assert (not {'relu', 'Activation'} & set(ops)) == is_part, ops


def test_a_reader_with_another_split_stays_an_operator():
    assert 'relu' in ops_of(RECTIFIED['relu'][0], grid(batch=2))


@pytest.mark.parametrize('case', POOLED)
def test_a_halving_pooling_is_part_of_the_operator(case):
    after, size, is_part = POOLED[case]
    ops = ops_of(after, size=size)
    assert ('Pooling' not in ops) == is_part, ops
