"""Custom operators, which need different arrays in their backward passes, in split networks and in one process."""
import mxnet as mx
import numpy as np
from lab.reports import report

import mxhybrid
from mxhybrid.parallel import by_name, data_parallel
from tests.helpers.custom_operators import register
from tests.helpers.gluon_nets import Net, initialised, step, trainer_of
from tests.helpers.outcomes import largest_difference, values_of

BATCH, STEPS = 4, 3
store = mxhybrid.create()
DATA = np.random.RandomState(0).uniform(-1, 1, (STEPS, BATCH, 6))

OPERATORS = {'loss': (False, 1, 1), 'pair': (True, 2, 2), 'one_of_three': (True, 1, 3), 'three_of_one': (True, 3, 1),
             'loss_of_two': (False, 2, 2), 'with_state': (True, 1, 1, 1)}
for operator, counts in OPERATORS.items():
    register(operator, *counts)

#: The operators of each network in their order: MXNet keeps the needs of the last one.
NETWORKS = [['loss'], ['pair', 'three_of_one', 'loss'], ['loss_of_two', 'loss', 'pair'], ['loss', 'one_of_three'],
            ['with_state', 'loss_of_two'], ['loss', 'with_state', 'pair']]


def scale(number):
    """Return a layer of a weight for each feature: MXNet has no dense layers of float16 on CPUs."""
    return Net(call=lambda F, x, weight: F.broadcast_mul(x, weight), prefix='scale%d_' % number,
               weight={'shape': (1, 6), 'init': mx.init.Uniform(1)})


def new_net(operators):
    """Return a network of layers and operators in turn."""
    def call(F, x, first, *others, state):
        x = first(x)
        for operator, layer in zip(operators, others):
            _, inputs, outputs, *states = OPERATORS[operator]
            x = F.Custom(*[x] * inputs, *[state] * len(states), op_type=operator)
            x = layer(F.tanh(x[0] + x[outputs - 1] if outputs > 1 else x))
        return x
    return Net(lambda: map(scale, range(len(operators) + 1)), call,
               state={'shape': (BATCH, 6), 'init': 'ones', 'differentiable': False})


def trained(operators, dtype, plan=None, **settings):
    """Return the network after some steps."""
    mx.random.seed(1)
    net, samples, store = initialised(new_net(operators)), slice(None), None
    net.cast(dtype)
    net.hybridize()
    if plan is not None:
        net, store = mxhybrid.parallelize(net, plan, (BATCH, 6), dtype=dtype, **settings), mxhybrid.create()
        samples = net.samples
    trainer = trainer_of(net, kvstore=store, learning_rate=0.1)
    for batch in DATA:
        step(trainer, lambda batch=batch: net(mx.nd.array(batch[samples], dtype=dtype)), BATCH)
    return net


def apart(operators, dtype, plan, **settings):
    """Return the largest difference of parameters from those of one process."""
    expected = values_of(trained(operators, dtype))
    return largest_difference(trained(operators, dtype, plan, **settings).collect_params().values(), expected)


CHANNELS = by_name({'scale*': {'channels': 2}})
distances = {'%s, %s' % (' '.join(operators), dtype): apart(operators, dtype, CHANNELS)
             for dtype in ('float64', 'float32', 'float16') for operators in NETWORKS}
distances['samples, float64'] = apart(NETWORKS[1], 'float64', data_parallel())
distances['computed again, float64'] = apart(NETWORKS[1], 'float64', CHANNELS, recompute='scale*')
report(store.rank, distances=distances)
