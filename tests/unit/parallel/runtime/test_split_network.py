"""Plans that a network cannot follow are refused early; casts of mixed precision are operators like others."""
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxhybrid
from mxhybrid.base.errors import InputError
from mxhybrid.parallel.ops.graph import Graph
from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.strategies import by_name, data_parallel
from mxhybrid.parallel.runtime.split_network import apply_plan

from ....helpers.gluon_nets import Net, backward, initialised


def applied(net, plan, ranks, frozen=(), **how):
    """Return a network, split by a plan for some ranks."""
    return apply_plan(SimpleNamespace(size=ranks, rank=0), traced(net, (4, 4, 2, 2), **how), plan, False, 'joint',
                      frozenset(frozen))


@pytest.mark.parametrize('use_global_stats', [False, True])
def test_calls_of_a_norm_split_differently_are_refused(use_global_stats):
    net = initialised(Net(lambda: [nn.BatchNorm(in_channels=4, prefix='norm_', use_global_stats=use_global_stats)],
                          lambda F, data, norm: norm(F.relu(norm(data)))))
    assert applied(net, by_name({'norm_fwd': {'dimension1': 2}}), 2).shards is not None
    with pytest.raises(InputError, match='norm_fwd.*split the channels of all its calls alike'):
        applied(net, by_name({'norm_fwd#2': {'dimension1': 2}}), 2)


def transposed(calls, scaled, groups=1):
    """Return a network that calls a transposed convolution some times, with weights that are computed if `scaled`."""
    def call(F, data, weight):
        for _ in range(calls):
            data = F.Deconvolution(data, weight * 2 if scaled else weight, kernel=(3, 3), num_filter=4,
                                   num_group=groups)
        return data
    return Net(call=call, weight={'shape': (4, 4 // groups, 3, 3)})


@pytest.mark.parametrize('calls, scaled, words', [
    (2, False, '2 operators read net_weight, among them deconvolution0'),
    (1, True, '_mulscalar0 computes the weight of deconvolution0'), (1, False, '')])
def test_impossible_sums_of_transposed_convolutions_are_refused(calls, scaled, words):
    """MXNet alone ends with "could not execute a primitive" or a segmentation fault in the backward pass."""
    net = initialised(transposed(calls, scaled))
    reason = applied(net, data_parallel(), 2).untrainable
    assert reason.partition(' (Deconvolution of float32), but MXNet')[0] == words
    assert applied(net, data_parallel(), 2, ['net_weight']).untrainable == ''
    net.cast('float64')
    assert applied(net, data_parallel(), 2, dtype='float64').untrainable == ''


def test_a_network_that_mxnet_cannot_train_predicts():
    net = initialised(transposed(2, False))
    split, data = mxhybrid.parallelize(net, data_parallel(), (4, 4, 2, 2)), mx.nd.ones((4, 4, 2, 2))
    np.testing.assert_allclose(split(data).asnumpy(), net(data).asnumpy(), rtol=1e-5)
    with autograd.record(), pytest.raises(InputError, match='network: 2 operators read net_weight, .*predictions'):
        split(data)


@pytest.mark.parametrize('calls, scaled', [(2, False), (1, True)])
def test_transposed_convolutions_with_filters_for_each_channel_are_trained(calls, scaled):
    net = initialised(transposed(calls, scaled, groups=4), mx.init.Uniform(1))
    data = mx.nd.array(np.random.RandomState(0).rand(4, 4, 2, 2))
    exact = initialised(transposed(calls, scaled, groups=4), dtype='float64')
    exact.weight.set_data(net.weight.data().astype('float64'))
    split = mxhybrid.parallelize(net, data_parallel(), (4, 4, 2, 2))
    backward(lambda: (split(data) ** 2).sum())
    backward(lambda: (exact(data.astype('float64')) ** 2).sum())
    expected = exact.weight.grad().asnumpy()
    # Terms of a sum may cancel.
    np.testing.assert_allclose(net.weight.grad().asnumpy(), expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize('channels, words', [(2, ''), (4, '2 operators read net_weight, among them deconvolution0')])
def test_a_shard_of_one_channel_has_no_groups(channels, words):
    split = applied(initialised(transposed(2, False, groups=4)), by_name({'deconvolution*': {'channels': channels}}), 4)
    assert split.untrainable.partition(' (Deconvolution')[0] == words


def test_a_transposed_convolutions_gradient_is_not_added():
    """A network with running averages reads an element of a weight that learns, if there is one that allows it."""
    random = np.random.RandomState(1)
    data, targets, weight = (mx.nd.array(random.rand(*shape)) for shape in ((2, 3, 4, 4), (2, 3, 6, 6), (3, 3, 3, 3)))

    def train(is_split):
        net = initialised(Net(lambda: [nn.Conv2DTranspose(3, 3, in_channels=3, use_bias=False), nn.BatchNorm(
            in_channels=3, scale=False, center=False), nn.Activation('tanh')]), mx.init.Constant(weight))
        net = mxhybrid.parallelize(net, data_parallel(), data.shape) if is_split else net
        trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1}, kvstore=None)
        for _ in range(2):
            backward(lambda: (net(data) * targets).sum())
            trainer.step(1)
        return {name: param.data().asnumpy() for name, param in net.collect_params().items()}
    expected = train(False)
    for name, values in train(True).items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


def graph_of(symbol):
    return Graph(symbol, {'data': (4, 3)}, {'data': 'float32'})


def test_casts_are_operators_with_types_of_their_own():
    data = mx.sym.var('data')
    half = mx.sym.amp_cast(data, dtype='float16', name='half')
    both = mx.sym.amp_multicast(mx.sym.relu(half, name='relu'), data, num_outputs=2, name='both')
    graph = graph_of(mx.sym.elemwise_add(both[0], both[1], name='sum'))
    assert [one.op for one in graph.computing] == ['amp_cast', 'relu', 'amp_multicast', 'elemwise_add']
    types = {graph.label(one): graph.dtypes[one.number, 0] for one in graph.computing}
    assert types == {'half': np.float16, 'relu': np.float16, 'both': np.float32, 'sum': np.float32}


def test_networks_with_and_without_casts_are_different_ones():
    data = mx.sym.var('data')
    cast = mx.sym.amp_cast(data, dtype='float16', name='cast')
    assert graph_of(mx.sym.relu(cast, name='relu')).digest() != graph_of(mx.sym.relu(data, name='relu')).digest()
