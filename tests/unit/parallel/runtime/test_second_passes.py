"""Backward passes after several calls, and second backward passes of one call, in one process."""
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

import mxhybrid
from mxhybrid.parallel import data_parallel, pipeline

from ....helpers.gluon_nets import Net, initialised


def nets_of(plan, norm=0):
    """Return a network, and the same one split by a plan."""
    nets = [initialised(Net(lambda: [nn.Dense(3, in_units=4), *[nn.BatchNorm(in_channels=3)] * norm]), mx.init.One())
            for _ in range(2)]
    return nets[0], mxhybrid.parallelize(nets[1], plan, (4, 4))


def gradients_of(net):
    return [param.grad().asnumpy() for param in net.collect_params().values()]


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
    nets = nets_of(pipeline(1, 2))
    for net in nets:
        net.collect_params().setattr('grad_req', grad_req)
        pass_twice(net)
    for whole, split in zip(*map(gradients_of, nets)):
        np.testing.assert_array_equal(split, whole)


@pytest.mark.parametrize('schedule, norm', [('gpipe', 0), ('1f1b', 1)])
def test_a_second_pass_that_cannot_be_made_is_named(capfd, schedule, norm):
    _, net = nets_of(pipeline(1, 2, schedule), norm)
    with pytest.raises(mx.base.MXNetError):
        pass_twice(net)
    words = "a pipeline with schedule='%s': a second backward pass of one call (retain_graph=True)" % schedule
    assert words in ''.join(capfd.readouterr())


@pytest.mark.parametrize('actions', ['2121', '1221', '1r12', '2r11', '1c21'])
def test_gradients_reach_the_present_arrays(actions):
    """Each digit is a number of calls that share a backward pass; r initialises again, c makes other gradients."""
    nets = nets_of(data_parallel())
    for action in actions:
        for net in nets:
            if action == 'r':
                net.initialize(mx.init.One(), force_reinit=True)
            elif action == 'c':
                net.collect_params().setattr('grad_req', 'null')
                net.collect_params().setattr('grad_req', 'write')
            else:
                with autograd.record():
                    outputs = [net(mx.nd.ones((4, 4)) * (call + 1)) for call in range(int(action))]
                autograd.backward(outputs)
        for whole, split in zip(*map(gradients_of, nets)) if action.isdigit() else ():
            np.testing.assert_array_equal(split, whole)
