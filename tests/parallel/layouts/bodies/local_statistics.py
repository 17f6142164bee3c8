"""Data parallelism as a plan, with each worker's own statistics, compared with the network without a plan."""
import mxnet as mx
import nets
import numpy as np
from lab.reports import report
from mxnet import gluon

import mxhybrid
from tests.helpers.gluon_nets import initialised, step, trainer_of

store = mxhybrid.create()
share = slice(store.rank * 8 // store.num_workers, (store.rank + 1) * 8 // store.num_workers)
images, labels = nets.data_of('cnn', 4, 8)
loss_of, results = gluon.loss.SoftmaxCrossEntropyLoss(), []
for split in (False, True):
    mx.random.seed(1)
    net = initialised(nets.cnn(), mx.init.Xavier(), dtype='float64')
    net(mx.nd.zeros((4, 3, 16, 16), dtype='float64'))
    if split:
        net = mxhybrid.parallelize(net, mxhybrid.parallel.data_parallel(), (8, 3, 16, 16), dtype='float64',
                                   batch_norm='local')
    trainer = trainer_of(net, learning_rate=0.05)
    for arrays in zip(images, labels):
        data, label = (mx.nd.array(array[share], dtype='float64') for array in arrays)
        step(trainer, lambda net=net, data=data, label=label: loss_of(net(data), label), 8)
    results.append({name: param.data().asnumpy() for name, param in net.collect_params().items()})
apart = max(float(np.abs(results[0][name] - results[1][name]).max()) for name in results[0])
mean = results[1]['net_batchnorm0_running_mean']
report(store.rank, apart=apart, mean=float(np.abs(mean).sum()))
