"""Layers that are split, and AMP's loss scaler: an overflow on any worker ends the step on all workers, and lowers the
scale on all of them.  Reports scales and whether weights stayed finite.
"""
import mxnet as mx
import nets
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon
from mxnet.contrib.amp.loss_scaler import LossScaler

import mxhybrid
from mxhybrid import parallel

store = mxhybrid.create()
mx.random.seed(1)
net = nets.plain()
net.initialize(mx.init.Xavier())
net = mxhybrid.parallelize(net, parallel.grid(model=store.num_workers), (4, 3, 12, 12))
trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.01}, kvstore=store)
trainer._amp_loss_scaler = LossScaler()
scales, before = [], {}
for step in range(4):
    # In the second step the part of one worker alone overflows.
    images = mx.nd.ones((4, 3, 12, 12))[net.samples]
    with autograd.record():
        loss = (net(images) ** 2).sum()
    loss.backward()
    if step == 1:
        before = {name: param.data().asnumpy() for name, param in net.collect_params().items()}
        if store.rank == 1:
            net.collect_params()['net_dense0_weight'].grad()[:] = float('inf')
    trainer.step(4)
    if step == 1:
        kept = all(np.array_equal(param.data().asnumpy(), before[name]) for name, param in net.collect_params().items())
    scales.append(trainer._amp_loss_scaler.loss_scale)
finite = all(np.isfinite(param.data().asnumpy()).all() for param in net.collect_params().values())
report(store.rank, scales=scales, kept=kept, finite=finite)
