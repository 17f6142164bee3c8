"""A pipeline with schedule='1f1b' whose loss is weighed outside of the network, by the way that the argument names."""
import sys

import mxnet as mx
from mxnet import autograd
from mxnet.gluon import nn

import mxhybrid

mxhybrid.create()
net = nn.HybridSequential()
net.add(nn.Dense(4, in_units=4), nn.Dense(1, in_units=4))
net.initialize()
net = mxhybrid.parallelize(net, mxhybrid.parallel.pipeline(2, 2), (4, 4))
with autograd.record():
    loss = net(mx.nd.ones((2, 4)))
    weighed = {'samples': lambda: loss * mx.nd.array([[1], [2]]),
               'workers': lambda: loss * (1 + mxhybrid.create().rank)}[sys.argv[1]]()
weighed.backward()
mx.nd.waitall()
