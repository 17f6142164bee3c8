"""Calls that parallelize refuses with the same error on every worker; afterwards a good call works."""
import unittest

import mxnet as mx
import nets
from lab.reports import report
from mxnet import gluon
from mxnet.gluon import nn

import mxhybrid
from mxhybrid import parallel
from tests.helpers.gluon_nets import Net, initialised, step, trainer_of
from tests.helpers.outcomes import error_of

store = mxhybrid.create()
SHAPE = (8, 3, 12, 12)


def net_of():
    mx.random.seed(1)
    return initialised(nets.plain())


def used():
    """A network whose weights got their shapes by a call."""
    net = initialised(Net(lambda: [nn.Dense(32)]))
    net(mx.nd.ones((2, 3)))
    return net


def dense(units=32, dtype='float32', grad_req='write', **settings):
    """A network of which each worker gets another one, in this respect or that."""
    net = initialised(Net(lambda: [nn.Dense(units, in_units=3, **settings), nn.Dense(4, in_units=units)]), dtype=dtype)
    net.collect_params().setattr('grad_req', grad_req)
    return net


def different(**settings):
    """Split a network that has these settings on worker 1 alone."""
    settings = settings if store.rank else {}
    return mxhybrid.parallelize(dense(**settings), GRID, (8, 3), dtype=settings.get('dtype', 'float32'))


def trained_by(optimizer):
    """Split a network and make a step."""
    net = mxhybrid.parallelize(net_of(), parallel.one_weird_trick(), SHAPE)
    step(trainer_of(net, optimizer, mxhybrid.create()), lambda: net(mx.nd.ones(SHAPE)[net.samples]), SHAPE[0])


GRID = parallel.grid(model=store.num_workers)
CALLS = {
    'no HybridBlock': lambda: mxhybrid.parallelize(gluon.Block(), GRID, SHAPE),
    'no values': lambda: mxhybrid.parallelize(nets.plain(), GRID, SHAPE),
    'no initializer': lambda: mxhybrid.parallelize(nets.plain(), GRID, SHAPE, init=3),
    'no name of an initializer': lambda: mxhybrid.parallelize(nets.plain(), GRID, SHAPE, init='xaviar'),
    'another product': lambda: mxhybrid.parallelize(net_of(), parallel.grid(model=3, batch=5), SHAPE),
    'other model groups': lambda: mxhybrid.parallelize(net_of(), parallel.megatron(model=3), SHAPE),
    'no attention': lambda: mxhybrid.parallelize(net_of(), parallel.megatron(model=store.num_workers), SHAPE),
    'no heads': lambda: mxhybrid.parallelize(net_of(), {'dense*': {'heads': 2}}, SHAPE),
    'other heads': lambda: mxhybrid.parallelize(initialised(nets.gpt(), dtype='float64'), {'attention_*': {'heads': 3}},
                                                [(8, nets.TIMES)] * 2, dtype='float64'),
    'no plan': lambda: mxhybrid.parallelize(net_of(), 7, SHAPE),
    'no file': lambda: mxhybrid.parallelize(net_of(), '/nowhere/plan.json', SHAPE),
    'no such dimension': lambda: mxhybrid.parallelize(net_of(), {'dense*': {'height': 2}}, SHAPE),
    'too many parts': lambda: mxhybrid.parallelize(net_of(), {'dense*_fwd': {'channels': 64}}, SHAPE),
    'no such rank': lambda: mxhybrid.parallelize(net_of(), {'dense0_fwd': {'ranks': [9]}}, SHAPE),
    'a degree of none': lambda: mxhybrid.parallelize(net_of(), {'dense0_fwd': {'channels': 0}}, SHAPE),
    'no whole shape': lambda: mxhybrid.parallelize(net_of(), GRID, (8, 3, 0, 12)),
    'images too small': lambda: mxhybrid.parallelize(net_of(), GRID, (8, 3, 12)),
    'weights of other data': lambda: mxhybrid.parallelize(used(), GRID, (8, 24)),
    'other units': lambda: different(units=64),
    'another activation': lambda: different(activation='tanh'),
    'no bias': lambda: different(use_bias=False),
    'another type': lambda: different(dtype='float16'),
    'another grad_req': lambda: different(grad_req='add'),
    'other data': lambda: mxhybrid.parallelize(dense(), GRID, (8 + 8 * store.rank, 3)),
    'input_grad on one': lambda: mxhybrid.parallelize(dense(), GRID, (8, 3), input_grad=bool(store.rank)),
    'for_data of others': lambda: mxhybrid.parallelize(dense(), GRID, (8, 3)).for_data((4 + 2 * store.rank, 3)),
    'no such axis': lambda: mxhybrid.parallelize(net_of(), GRID, SHAPE, batch_axis=7),
    'statistics': lambda: mxhybrid.parallelize(initialised(nets.cnn()), parallel.grid(domain=(store.num_workers,)),
                                               (8, 3, 16, 16), batch_norm='local'),
    'no type': lambda: mxhybrid.parallelize(net_of(), GRID, SHAPE, dtype='float99'),
    'an array for a shape': lambda: mxhybrid.parallelize(net_of(), GRID, mx.nd.zeros(SHAPE)),
    'no symbols': lambda: mxhybrid.parallelize(nn.HybridLambda(lambda F, data: 5), GRID, SHAPE),
    'other plans': lambda: mxhybrid.parallelize(net_of(), [GRID, parallel.data_parallel()][store.rank], SHAPE),
    'lamb': lambda: trained_by('lamb'),
    'nadam': lambda: trained_by('nadam'),
    'too many stages': lambda: mxhybrid.parallelize(net_of(), parallel.pipeline(3, 2), SHAPE),
    'other micro-batches': lambda: mxhybrid.parallelize(net_of(), parallel.pipeline(2, 3), SHAPE),
    'no operator of a stage': lambda: mxhybrid.parallelize(net_of(), parallel.pipeline(['conv*', 'rnn*'], 2), SHAPE),
    'no samples': lambda: mxhybrid.parallelize(nn.HybridLambda(lambda F, data: F.mean(F.relu(data))),
                                                parallel.pipeline(2, 2), (8, 3)),
    'gradients of inputs': lambda: mxhybrid.parallelize(net_of(), parallel.pipeline(2, 2), SHAPE, input_grad=True),
    'no block': lambda: mxhybrid.parallelize(net_of(), GRID, SHAPE, recompute='rnn*'),
    'no pattern': lambda: mxhybrid.parallelize(net_of(), GRID, SHAPE, recompute=3),
    'other blocks': lambda: mxhybrid.parallelize(net_of(), GRID, SHAPE, recompute=['conv*', 'dense*'][store.rank]),
    'one worker alone': lambda: mxhybrid.parallelize(net_of(), GRID, SHAPE if store.rank else (8, 3, 0, 1)),
}

errors = {name: error_of(call) for name, call in CALLS.items()}
net = mxhybrid.parallelize(net_of(), GRID, SHAPE)
errors['another batch'] = error_of(net, mx.nd.zeros((100, 3, 12, 12)))
found = net(mx.nd.ones(SHAPE)[net.samples])

# A plan that finds nothing to divide is no error, but each worker says so.
with unittest.TestCase().assertLogs('mxhybrid', 'WARNING') as logs:
    convolution = mxhybrid.parallelize(initialised(nn.Conv2D(4, 3, in_channels=3)), parallel.one_weird_trick(), SHAPE)
report(store.rank, errors=errors, shape=list(found.shape), layouts=convolution.report(),
       warnings=[record.getMessage() for record in logs.records])
