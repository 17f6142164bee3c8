"""The dense part of a network with dynamic tables, as a symbol of MXNet and as ONNX, gives the network's results."""
import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon, nd

import mxhybrid
from mxhybrid import InputError

from ...helpers.gluon_nets import backward, initialised, trainer_of


class Net(gluon.Block):
    """Rows of two tables, one of which is looked up twice, bags, a dense input, and layers with statistics."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.items = mxhybrid.nn.Embedding(2 ** 40, 4)
            self.words = mxhybrid.nn.HashEmbedding(4)
            self.features = mxhybrid.nn.EmbeddingCollection({'user': mxhybrid.nn.HashEmbedding(4), 'item': self.items})
            self.dense = gluon.nn.HybridSequential()
            with self.dense.name_scope():
                self.dense.add(gluon.nn.Dense(5, activation='relu'), gluon.nn.BatchNorm(), gluon.nn.Dropout(0.5),
                               gluon.nn.Dense(2))
            self.shift = self.params.get('shift', shape=(1, 2), init='ones', grad_req='null')

    def forward(self, ids, words, offsets, ages):
        rows = self.features({'user': ids * 3, 'item': ids})
        joined = nd.concat(self.items(ids + 1), self.words(words, offsets, 'mean'), rows['user'], rows['item'], ages,
                           dim=1)
        return nd.broadcast_add(self.dense(joined), self.shift.data()), rows['user'].sum(axis=1)


def arguments(samples, seed=0):
    random = np.random.RandomState(seed)
    return (random.randint(0, 2 ** 39, samples), random.randint(0, 99, 3 * samples), np.arange(samples) * 3,
            nd.array(random.rand(samples, 1)))


def lookups(net, ids, words, offsets, ages):
    """Return the inputs of the symbol, by name."""
    return {'features.user.rows': net.features['user'](ids * 3), 'features.item.rows': net.items(ids),
            'features.item.rows1': net.items(ids + 1), 'words.rows': net.words(words, offsets, 'mean'), 'data3': ages}


def train(net, steps):
    """Train a network; return its losses."""
    trainer, losses = trainer_of(net, learning_rate=0.1), []
    for number in range(steps):
        losses.append(backward(lambda number=number: (net(*arguments(6, number))[0] ** 2).sum()).asscalar())
        trainer.step(6)
    return losses


def new_net():
    """Return a network whose dense part is hybridized, after two steps of training."""
    mx.random.seed(3)
    net = initialised(Net(), mx.init.Normal(0.5))
    net.dense.hybridize()
    train(net, 2)
    return net


def test_a_symbol_has_the_results_of_the_network(tmp_path):
    net = new_net()
    exported = mxhybrid.nn.export(net, tmp_path / 'net', *arguments(6))
    assert exported.inputs == {name: array.shape for name, array in lookups(net, *arguments(6)).items()}
    block = gluon.SymbolBlock.imports(exported.symbol_file, list(exported.inputs), exported.params_file)
    for samples in (6, 1, 9):
        given = arguments(samples, 5)
        for actual, expected in zip(block(*lookups(net, *given).values()), net(*given)):
            np.testing.assert_array_equal(actual.asnumpy(), expected.asnumpy())
    weights = mx.nd.load(exported.params_file)
    assert {name.partition(':')[2] for name in weights} == {
        name for name in net._collect_params_with_prefix() if name.startswith(('dense', 'shift'))}
    np.testing.assert_array_equal(weights['aux:dense.1.running_mean'].asnumpy(),
                                  net.dense[1].running_mean.data().asnumpy())


def test_training_goes_on_after_an_export(tmp_path):
    net, expected = new_net(), new_net()
    mxhybrid.nn.export(net, tmp_path / 'net', *arguments(6))
    mx.random.seed(4)
    losses = train(net, 3)
    mx.random.seed(4)
    assert train(expected, 3) == losses
    np.testing.assert_array_equal(net.dense[1].running_mean.data().asnumpy(),
                                  expected.dense[1].running_mean.data().asnumpy())


def test_onnx_has_the_results_of_the_network(tmp_path):
    from mxnet import onnx as exporter
    from onnx.reference import ReferenceEvaluator

    net = new_net()
    exported = mxhybrid.nn.export(net, tmp_path / 'net', *arguments(6))
    path = str(tmp_path / 'net.onnx')
    exporter.export_model(exported.symbol_file, exported.params_file, list(exported.inputs.values()), np.float32, path)
    given = arguments(6, 5)
    inputs = {name: array.asnumpy() for name, array in lookups(net, *given).items()}
    for actual, expected in zip(ReferenceEvaluator(path).run(None, inputs), net(*given)):
        np.testing.assert_allclose(actual, expected.asnumpy(), rtol=1e-5, atol=1e-6)


class Broken(gluon.Block):
    """A network that a symbol cannot have, for the reason that `kind` names."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        with self.name_scope():
            self.items = mxhybrid.nn.Embedding(100, 4)

    def forward(self, ids):
        rows = self.items(ids)
        if self.kind == 'array':
            return rows + nd.ones((len(ids), 4))
        if self.kind == 'function':
            return mxhybrid.nn.bags.NoGradients()(rows)
        return rows[:, 0] if self.kind == 'size' else rows.asnumpy()


@pytest.mark.parametrize('kind, message', [
    ('array', 'the forward pass of Broken makes an array from values, by mx.nd.array'),
    ('function', r'runs Python code or a symbol of its own \(_CustomFunction\)'),
    ('numpy', 'the forward pass of Broken returned no NDArray')])
def test_networks_that_no_symbol_can_have(tmp_path, kind, message):
    net = initialised(Broken(kind))
    with pytest.raises(InputError, match=message):
        mxhybrid.nn.export(net, tmp_path / 'net', [1, 2])
    assert not list(tmp_path.iterdir()) and 'forward' not in vars(net.items)


def test_wrong_directories_and_fixed_sizes_are_named(tmp_path, caplog):
    net = initialised(Broken('size'))
    with pytest.raises(InputError, match='export: cannot write .*none/net: .*No such file'):
        mxhybrid.nn.export(net, tmp_path / 'none' / 'net', [1, 2])
    assert not list(tmp_path.iterdir())
    mxhybrid.nn.export(net, tmp_path / 'net', [1, 2])
    with pytest.raises(InputError, match='export: dense.0.bias has no values yet: call net.initialize'):
        mxhybrid.nn.export(Net(), tmp_path / 'other', *arguments(2))
    assert 'use mx.nd.slice_axis in place of []' in caplog.text
