"""Training in bodies of jobs: a net with tables, passes and steps, and the weights after them."""
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.contrib.nn import SparseEmbedding

from . import gluon_nets


class TwoTables(gluon.Block):
    """A table with a row_sparse weight, or a dense one, a table with row_sparse gradients, and a dense layer."""

    def __init__(self, rows, widths, ids_per_sample=1, outputs=1, sparse_weight=True, prefix=None):
        super().__init__(prefix=prefix)
        with self.name_scope():
            self.weight = (SparseEmbedding if sparse_weight else nn.Embedding)(rows, widths[0], prefix='weight_')
            self.gradient = nn.Embedding(rows, widths[1], sparse_grad=True, prefix='gradient_')
            self.out = nn.Dense(outputs, in_units=ids_per_sample * sum(widths), prefix='out_')

    def forward(self, ids):
        parts = [table(ids).reshape((ids.shape[0], -1)) for table in (self.weight, self.gradient)]
        return self.out(mx.nd.concat(*parts, dim=1))


def sum_of_squares(output):
    return (output ** 2).sum()


def backward(net, *inputs, loss_of=mx.nd.sum):
    """Compute the gradients of a loss, which is ``loss_of(net(*inputs))``; return the loss."""
    return gluon_nets.backward(lambda: loss_of(net(*inputs)))


def make_step(trainer, batch_size, net, *inputs, loss_of=mx.nd.sum):
    """Make a step by the gradients of `backward`; return the loss."""
    loss = backward(net, *inputs, loss_of=loss_of)
    trainer.step(batch_size)
    return loss


def weights_of(net):
    """Return all parameters by name, as NumPy arrays."""
    return {name: param._reduce().asnumpy() for name, param in net.collect_params().items()}
