"""Backward passes after several calls, and second backward passes of one call, in one process."""
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import mxhybrid
from mxhybrid.parallel import data_parallel, pipeline


def net_of(norm):
    net = gluon.nn.HybridSequential(prefix='net_')
    net.add(gluon.nn.Dense(3, in_units=4), *[gluon.nn.BatchNorm(in_channels=3)] * norm)
    net.initialize(mx.init.One())
    return net


def pass_twice(net):
    with autograd.record():
        loss = net(mx.nd.arange(16).reshape((4, 4)))
        double = 2 * loss
    loss.backward(retain_graph=True)
    mx.nd.waitall()
    double.backward()
    mx.nd.waitall()


@pytest.mark.parametrize('grad_req', ['write', 'add'])
def test_a_pipeline_returns_the_gradients_again(grad_req):
    gradients = []
    for plan in (None, pipeline(1, 2)):
        net = net_of(0) if plan is None else mxhybrid.parallelize(net_of(0), plan, (4, 4))
        net.collect_params().setattr('grad_req', grad_req)
        pass_twice(net)
        gradients.append([param.grad().asnumpy() for param in net.collect_params().values()])
    for one, split in zip(*gradients):
        np.testing.assert_array_equal(one, split)


@pytest.mark.parametrize('schedule, norm', [('gpipe', 0), ('1f1b', 1)])
def test_a_second_pass_that_cannot_be_made_is_named(capfd, schedule, norm):
    net = mxhybrid.parallelize(net_of(norm), pipeline(1, 2, schedule), (4, 4))
    with pytest.raises(mx.base.MXNetError):
        pass_twice(net)
    words = "a pipeline with schedule='%s': a second backward pass of one call (retain_graph=True)" % schedule
    assert words in ''.join(capfd.readouterr())


@pytest.mark.parametrize('actions', ['2121', '1221', '1r12', '2r11', '1c21'])
def test_gradients_reach_the_present_arrays(actions):
    """Each digit is a number of calls that share a backward pass; r initialises again, c makes other gradients."""
    gradients = []
    for plan in (None, data_parallel()):
        net = net_of(0) if plan is None else mxhybrid.parallelize(net_of(0), plan, (4, 4))
        seen = []
        for action in actions:
            if action == 'r':
                net.initialize(mx.init.One(), force_reinit=True)
            elif action == 'c':
                net.collect_params().setattr('grad_req', 'null')
                net.collect_params().setattr('grad_req', 'write')
            else:
                with autograd.record():
                    outputs = [net(mx.nd.ones((4, 4)) * (call + 1)) for call in range(int(action))]
                autograd.backward(outputs)
                seen.append([param.grad().asnumpy().copy() for param in net.collect_params().values()])
        gradients.append(seen)
    for one, split in zip(*gradients):
        for array, other in zip(one, split):
            np.testing.assert_array_equal(array, other)
