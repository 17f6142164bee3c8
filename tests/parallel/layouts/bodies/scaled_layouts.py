"""An overflow on one worker ends the step of split layers on all workers, and lowers AMP's loss scale on all."""
import mxnet as mx
import nets
import numpy as np
from lab.reports import report
from mxnet.contrib.amp.loss_scaler import LossScaler

import mxhybrid
from mxhybrid import parallel
from tests.helpers.gluon_nets import backward, initialised, trainer_of
from tests.helpers.outcomes import values_of

store = mxhybrid.create()
mx.random.seed(1)
net = initialised(nets.plain(), mx.init.Xavier())
net = mxhybrid.parallelize(net, parallel.grid(model=store.num_workers), (4, 3, 12, 12))
trainer = trainer_of(net, kvstore=store, learning_rate=0.01)
trainer._amp_loss_scaler = LossScaler()
images, scales, values = mx.nd.ones((4, 3, 12, 12))[net.samples], [], [values_of(net)]
for number in range(4):
    backward(lambda: net(images) ** 2)
    if number == 1 and store.rank == 1:  # the part of one worker alone overflows
        net.collect_params()['net_dense0_weight'].grad()[:] = float('inf')
    trainer.step(4)
    values.append(values_of(net))
    scales.append(trainer._amp_loss_scaler.loss_scale)
report(store.rank, scales=scales, kept=all(map(np.array_equal, values[1], values[2])),
       finite=all(np.isfinite(array).all() for array in values[-1]))
