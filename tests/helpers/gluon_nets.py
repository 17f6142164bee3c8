"""Gluon networks in few lines, their backward passes and their steps."""
import contextlib

from mxnet import autograd, gluon


def in_turn(F, data, *layers):
    """Call layers one after the other."""
    for layer in layers:
        data = layer(data)
    return data


class Net(gluon.HybridBlock):
    """A network of layers: `make` returns them, inside of the name scope by default, and `call` calls them.

    `weights` are options of parameters of the network itself, which `call` gets by name.
    """

    def __init__(self, make=list, call=in_turn, prefix='net_', in_scope=True, **weights):
        super().__init__(prefix=prefix)
        self._call = call
        with self.name_scope() if in_scope else contextlib.nullcontext():
            self.layers = list(make())
        for layer in self.layers:
            self.register_child(layer)
        for name, options in weights.items():
            setattr(self, name, self.params.get(name, **options))

    def hybrid_forward(self, F, *inputs, **weights):
        return self._call(F, *inputs, *self.layers, **weights)


def initialised(net, *initializer, dtype=None):
    """Return a network once it has values, of another type if one is given."""
    if dtype is not None:
        net.cast(dtype)
    net.initialize(*initializer)
    return net


def backward(compute, *gradients):
    """Record the array, or the list of arrays, that a function computes, make their backward pass, and return them."""
    with autograd.record():
        outputs = compute()
    autograd.backward(outputs, *gradients)
    return outputs


def trainer_of(net, optimizer='sgd', kvstore='hybrid', **settings):
    """Return a Trainer of a network; the learning rate is 1 if the settings have no other one."""
    return gluon.Trainer(net.collect_params(), optimizer, {'learning_rate': 1.0, **settings}, kvstore=kvstore)


def step(trainer, compute, batch_size=1):
    """Make a step for the loss that a function computes."""
    backward(compute)
    trainer.step(batch_size)
