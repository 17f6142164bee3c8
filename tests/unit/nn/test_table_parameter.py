"""The parameter of a dynamic table: calls that work as with any parameter, and calls that are refused."""
import copy
import pickle

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import mxhybrid

from ...helpers.gluon_nets import initialised, step, trainer_of


class Net(gluon.Block):
    def __init__(self, **keywords):
        super().__init__()
        with self.name_scope():
            self.items = mxhybrid.nn.Embedding(1 << 40, 4, **keywords)
            self.out = gluon.nn.HybridSequential()
            self.out.add(gluon.nn.Dense(1, in_units=4))

    def forward(self, ids):
        return self.out(self.items(ids))


def new_net(seed=0, **keywords):
    mx.random.seed(seed)
    return initialised(Net(**keywords))


def new_table(*arguments, **keywords):
    mx.random.seed(0)
    return initialised(mxhybrid.nn.Embedding(*arguments, weight_initializer=mx.init.Normal(1), **keywords))


def test_is_a_parameter():
    net = new_net()
    params = net.collect_params()
    param = net.items.weight
    assert params[param.name] is param and len(params.keys()) == 3 and isinstance(param, gluon.Parameter)
    assert param.shape == (1 << 40, 4) and mxhybrid.nn.HashEmbedding(4).weight.shape == (0, 4)
    assert param.list_ctx() == [mx.cpu()]
    params.reset_ctx(mx.cpu(1))
    assert net.items([1]).context == mx.cpu(1)
    params.setattr('lr_mult', 0.5)
    assert param.lr_mult == 0.5
    assert '1099511627776 -> 4' in repr(net)
    net.hybridize()
    assert net(np.array([1, 2])).shape == (2, 1)


def test_the_seed_of_mxnet_decides():
    rows = [new_net(seed).items([5, 1 << 39]).asnumpy() for seed in (1, 1, 2)]
    np.testing.assert_array_equal(rows[0], rows[1])
    assert (rows[0] != rows[2]).all()


@pytest.mark.parametrize('init, mean, deviation', [
    (mx.init.Zero(), 0, 0), ('zeros', 0, 0), (mx.init.One(), 1, 0), (mx.init.Constant(0.5), 0.5, 0),
    (mx.init.Uniform(0.3), 0, 0.3 / 3 ** 0.5), ('uniform', 0, 0.07 / 3 ** 0.5), (mx.init.Normal(0.2), 0, 0.2),
    (mx.init.Xavier(), 0, (1 / 4) ** 0.5), (mx.init.Xavier('gaussian', 'in', 2), 0, (2 / 4) ** 0.5)])
def test_initializers(init, mean, deviation):
    values = new_net(weight_initializer=init).items(np.arange(20000)).asnumpy()
    np.testing.assert_allclose([values.mean(), values.std()], [mean, deviation], atol=max(0.01, deviation / 50) / 2)


@pytest.mark.parametrize('init, message', [
    (mx.init.Orthogonal(), r'initializer Orthogonal cannot give first values to a dynamic table'),
    (mx.init.Mixed(['.*'], [mx.init.Zero()]), r'weight: Mixed is no initializer that MXNet creates: use one of '),
    ('nonsense', r"weight: 'nonsense' is no initializer"), (0.5, r'weight: float is no initializer'),
    (mx.init.MSRAPrelu(), r'initializer MSRAPrelu cannot'), (mx.init.Bilinear(), r'initializer Bilinear cannot'),
    (mx.init.Constant(mx.nd.ones((2, 4))), r'Constant\(NDArray\) does not have a single number'),
    (mx.init.Normal(float('nan')), r'Normal\(nan\) is not a finite number'),
    (mx.init.Xavier('cauchy'), r"rnd_type='cauchy'")])
def test_initializers_are_refused(init, message):
    with pytest.raises(mxhybrid.InputError, match=message):
        new_net(weight_initializer=init)


def test_initialised_once_and_by_the_initializer_of_the_net():
    net = Net()
    with pytest.raises(mxhybrid.InputError, match='has not been initialised: call initialize'):
        net.items([1])
    net.initialize(mx.init.Constant(2))
    with pytest.warns(UserWarning, match='already initialized'):
        net.items.weight.initialize(mx.init.Zero())
    assert (net.items([1]).asnumpy() == 2).all()


@pytest.mark.parametrize('call, message', [
    (lambda net, path: net.items.weight.data(), r'data: \w*weight is a dynamic table, of which no process holds an '
                                                r'array. Read rows by id'),
    (lambda net, path: net.items.weight.list_data(), r'list_data: '),
    (lambda net, path: net.items.weight.grad(), r'grad: .*clip_gradient'),
    (lambda net, path: net.items.weight.list_grad(), r'grad: '),
    (lambda net, path: net.items.weight.set_data(mx.nd.ones((2, 4))), r'set_data: '),
    (lambda net, path: net.items.weight.row_sparse_data(mx.nd.array([1])), r'row_sparse_data: '),
    (lambda net, path: net.items.weight.list_row_sparse_data(mx.nd.array([1])), r'list_row_sparse_data: '),
    (lambda net, path: net.items.weight.var(), r'var: .*cannot be traced'),
    (lambda net, path: net.save_parameters(path), r'save_parameters: .*mxhybrid.checkpoint.save'),
    (lambda net, path: net.collect_params().save(path), r'save_parameters: '),
    (lambda net, path: net.summary(np.array([1])), r'data: .*print\(net\) shows its tables'),
    (lambda net, path: net.cast('float16'), r'dtype float16: the rows of a dynamic table are float32 or float64'),
    (lambda net, path: mxhybrid.parallelize(net, 'auto', (2,)), r'the network is a Net, not a HybridBlock')])
def test_calls_that_need_an_array_are_refused(call, message, tmp_path):
    with pytest.raises(Exception, match=message) as error:
        call(new_net(), str(tmp_path / 'net.params'))
    assert isinstance(error.value, mxhybrid.HybridError)


def test_files_of_other_parameters(tmp_path):
    net, other, path = new_net(1), new_net(2), str(tmp_path / 'net.params')
    mx.nd.save(path, {name: param.data() for name, param in net._collect_params_with_prefix().items()
                      if param is not net.items.weight})
    other.load_parameters(path, allow_missing=True)
    np.testing.assert_array_equal(other.out[0].weight.data().asnumpy(), net.out[0].weight.data().asnumpy())
    mx.nd.save(path, {'items.weight': mx.nd.ones((2, 4))})
    with pytest.raises(mxhybrid.InputError, match='load_parameters: .*mxhybrid.checkpoint.load'):
        net.load_parameters(path, allow_missing=True)


def test_a_hybrid_block_does_not_take_it():
    with pytest.raises(ValueError, match='must also be HybridBlock'):
        gluon.nn.HybridSequential().add(mxhybrid.nn.Embedding(10, 2))


def train(net):
    step(trainer_of(net), lambda: net(np.array([1, 2])))


@pytest.mark.parametrize('duplicate', [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies(duplicate):
    net = initialised(mxhybrid.nn.HashEmbedding(4, admit=2), mx.init.Normal(1))
    np.testing.assert_array_equal(duplicate(net)([1]).asnumpy(), net([1]).asnumpy())
    net = new_net().items
    train(net)
    with pytest.raises(mxhybrid.InputError, match='a copy: .*has rows that were trained'):
        duplicate(net)


def test_casts():
    net = new_net()
    net.cast('float64')
    assert net.items([1]).dtype == np.float64
    train(net)
    net.cast('float64')
    with pytest.raises(mxhybrid.InputError, match='cast to float32: .*has rows of type float64'):
        net.cast('float32')


def test_two_blocks_share_rows():
    first = new_table(100, 3)
    second = mxhybrid.nn.Embedding(100, 3, weight_initializer=mx.init.Normal(1), params=first.params)
    assert second.weight is first.weight
    before = first([1, 2, 3]).asnumpy()
    step(trainer_of(second), lambda: [first(np.array([1, 2])), second(np.array([2, 3]))])
    np.testing.assert_allclose(second([1, 2, 3]).asnumpy(), before - [[1], [2], [1]], rtol=1e-5, atol=1e-6)
    for keywords in ({'rows': 99, 'width': 3}, {'rows': 100, 'width': 3, 'dtype': 'float64'}):
        with pytest.raises(mxhybrid.InputError, match='cannot be shared'):
            mxhybrid.nn.Embedding(params=first.params, **keywords)
    with pytest.raises(mxhybrid.InputError, match='cannot be shared'):
        mxhybrid.nn.Embedding(100, 3, params=gluon.nn.Embedding(100, 3).params)


def test_tied_use_in_an_output_layer():
    table = new_table(1000, 3, 'float64')
    values = table.rows([1, 2, 900]).asnumpy()
    step(trainer_of(table), lambda: mx.nd.dot(table(np.array([1, 2])), table.rows(np.array([2, 900])),
                                              transpose_b=True))
    outer = values[1] + values[2]
    inner = values[0] + values[1]
    np.testing.assert_allclose(table.rows([1, 2, 900]).asnumpy(), values - [outer, outer + inner, inner], rtol=1e-10)


@pytest.mark.parametrize('rows, width, message', [
    (0, 4, r'rows=0: give an integer from 1 to 9223372036854775807'), (1 << 63, 4, r'rows=9223372036854775808'),
    (2.0, 4, r'rows=2.0'), (True, 4, r'rows=True'), (10, 0, r'width=0'), (10, 1 << 25, r'width=33554432')])
def test_sizes_are_refused(rows, width, message):
    with pytest.raises(mxhybrid.InputError, match=message):
        mxhybrid.nn.Embedding(rows, width)


def test_np_arrays_are_refused():
    net = new_net()
    mx.npx.set_np()
    try:
        with pytest.raises(mxhybrid.InputError, match='set_np'):
            net.items(np.array([1]))
    finally:
        mx.npx.reset_np()
