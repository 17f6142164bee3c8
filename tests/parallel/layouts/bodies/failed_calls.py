"""Operators of split networks fail in MXNet's engine; the script catches the error and splits another network."""
import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd
from mxnet.gluon import nn

import mxhybrid
from mxhybrid import parallel
from mxhybrid.parallel.redistribution import recovery
from mxhybrid.parallel.runtime import dropped_networks
from tests.helpers.gluon_nets import Net, initialised
from tests.helpers.outcomes import error_of

#: The workers whose first and whose second input let an operator fail; each worker reads a result of a failed one.
CASES = [({0, 1}, {0, 1}), ({0}, {0, 1}), ({1}, {0}), (set(), {0, 1}), ({0, 1}, set()), ({0, 1}, {1})]


def split():
    """Split a network with three operators that fail on negative matrices, one of them before redistributions."""
    def call(F, x, y, first, last):
        return F.linalg.potrf(y), last(first(first(x + F.linalg.potrf(x)))), F.linalg.potrf(y + y)
    net = Net(lambda: [nn.Dense(4, in_units=4, flatten=False, prefix=prefix) for prefix in ('first_', 'last_')], call)
    return mxhybrid.parallelize(initialised(net, mx.init.Constant(0.125)), parallel.grid(model=2), [(4, 4, 4)] * 2)


def train(net, bad_x, bad_y, read=True):
    """Return outputs of a call on matrices that are negative where an operator shall fail, or its error."""
    x, y = (mx.nd.eye(4).reshape((1, 4, 4)).tile((2, 1, 1)) * (-1 if bad else 1) for bad in (bad_x, bad_y))
    try:
        with autograd.record():
            outputs = net(x, y)
            loss = outputs[0].sum() + outputs[1].sum()
        loss.backward()
        return [output.asnumpy() for output in outputs] if read else None
    except mx.base.MXNetError as error:
        return str(error)


store = mxhybrid.create()
recovery.PATIENCE_S = dropped_networks.PATIENCE_S = 1.0
expected = train(split(), False, False)
caught, same, equal_or_refused, kept = [], [], [], None
for turn in range(2 * len(CASES)):
    bad_x, bad_y = CASES[turn % len(CASES)]
    net = split()
    if turn % 2:  # otherwise the script drops the network that has failed
        kept = net
    caught.append('potrf failed' in str(train(net, store.rank in bad_x, store.rank in bad_y)))
    net = split()
    same.append(all(map(np.array_equal, train(net, False, False), expected)))
    if kept is not None:
        try:
            equal_or_refused.append(all(map(np.array_equal, train(kept, False, False), expected)))
        except mxhybrid.InputError as error:
            equal_or_refused.append('parallelize the network again' in str(error))
        kept = None

# Worker 0 alone fails, and worker 1 waits for its data in no call: it reads no result.
net = split()
train(net, store.rank == 0, False, read=store.rank == 0)
message = error_of(split)
same.append(all(map(np.array_equal, train(split(), False, False), expected)))
report(store.rank, caught=caught, same=same, equal_or_refused=all(equal_or_refused), message=message)
