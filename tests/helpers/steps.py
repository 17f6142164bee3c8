"""Steps of training, as every script writes them."""
from mxnet import autograd


def backward(compute):
    """Compute the gradients of the loss that a function returns."""
    with autograd.record():
        loss = compute()
    loss.backward()


def step(trainer, compute, batch_size=1):
    """Train one step with the loss that a function returns."""
    backward(compute)
    trainer.step(batch_size)
