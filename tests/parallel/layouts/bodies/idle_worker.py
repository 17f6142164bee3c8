"""A network in which worker 2 has no part in any redistribution, called twice before backward; then another network."""
import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet.gluon import nn

import mxhybrid
from mxhybrid.job.join import member
from mxhybrid.parallel.redistribution.worker_group import worker_group_of
from mxhybrid.parallel.sharding.split import Split
from tests.helpers.gluon_nets import backward, initialised


def shape_only(F, data):
    """Compute numbers of which only the shape is read."""
    sines = F.sin(F.contrib.arange_like(data, axis=0), name='sines')
    return F.reshape_like(data * 2.0, F.cos(sines, name='cosines'))


class Swapped(mxhybrid.parallel.Plan):
    """Workers 0 and 1 compute halves of the sines, and need each other's half for the cosines."""

    def resolve(self, graph, dimensions, ranks):
        resolved = super().resolve(graph, dimensions, ranks)
        for operator in graph.computing:
            if graph.label(operator) in ('sines', 'cosines'):
                order = [0, 1] if graph.label(operator) == 'sines' else [1, 0]
                resolved.splits[operator.number] = Split([2], order, 1)
        return resolved


store = mxhybrid.create()
net = mxhybrid.parallelize(nn.HybridLambda(shape_only), Swapped(), (6,), dtype='float64', input_grad=True)
data = [mx.nd.arange(6, dtype='float64')[net.samples] for _ in range(2)]
for each in data:
    each.attach_grad()
backward(lambda: [net(each) for each in data])
report(store.rank, redistributions=net.redistributions, takes_part=net._programs[True].uses_token,
       number=worker_group_of(member()).reserve_numbers(0),
       gradients=np.concatenate([each.grad.asnumpy() for each in data]))

other = initialised(nn.Dense(6, in_units=4, use_bias=False), mx.init.Constant(0.5))
other = mxhybrid.parallelize(other, mxhybrid.parallel.grid(model=3), (3, 4))
report(store.rank, output=backward(lambda: other(mx.nd.ones((1, 4)))))
