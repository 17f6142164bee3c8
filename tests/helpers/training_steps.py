"""Passes and steps of training in bodies of jobs, and the weights after them."""
import mxnet as mx
from mxnet import autograd


def sum_of_squares(output):
    return (output ** 2).sum()


def backward(net, *inputs, loss_of=mx.nd.sum):
    """Compute the gradients of a loss, which is ``loss_of(net(*inputs))``; return the loss."""
    with autograd.record():
        loss = loss_of(net(*inputs))
    loss.backward()
    return loss


def make_step(trainer, batch_size, net, *inputs, loss_of=mx.nd.sum):
    """Make a step by the gradients of `backward`; return the loss."""
    loss = backward(net, *inputs, loss_of=loss_of)
    trainer.step(batch_size)
    return loss


def weights_of(net):
    """Return all parameters by name, as NumPy arrays."""
    return {name: param._reduce().asnumpy() for name, param in net.collect_params().items()}
