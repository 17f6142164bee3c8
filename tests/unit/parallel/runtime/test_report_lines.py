"""Norms that a network writes by itself are one line of a report."""
import mxnet as mx
import pytest
from mxnet.gluon import nn

from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.strategies import data_parallel
from mxhybrid.parallel.runtime.layout_table import layout_table
from mxhybrid.parallel.runtime.network_shards import NetworkShards
from mxhybrid.parallel.runtime.report_lines import report_lines
from mxhybrid.parallel.sharding.split import Split

from ....helpers.gluon_nets import initialised
from ....helpers.split_programs import splits_of, whole_splits


def layer_norm(F, x, gamma, beta):
    centred = F.broadcast_sub(x, F.mean(x, axis=-1, keepdims=True))
    variance = F.mean(F.square(centred), axis=-1, keepdims=True)
    return F.broadcast_add(F.broadcast_mul(F.broadcast_mul(centred, F.rsqrt(variance + 1e-5)), gamma), beta)


def divided(F, x, gamma, beta):
    mean = F.expand_dims(F.mean(x, axis=2), axis=2)
    squares = F.mean(x * x, axis=-1, keepdims=True)
    root = F.sqrt(squares - mean * mean + 1e-5)
    return F.broadcast_add(F.broadcast_mul(gamma, F.broadcast_div(F.broadcast_sub(x, mean), root)), beta)


def root_mean_square(F, x, gamma, beta):
    return F.broadcast_mul(F.broadcast_mul(x, F.rsqrt(F.mean(x ** 2, axis=-1, keepdims=True) + 1e-5)), gamma)


def length(F, x, gamma, beta):
    return F.broadcast_div(x, F.norm(x, axis=-1, keepdims=True) + 1e-5)


def moments(F, x, gamma, beta):
    mean, variance = F.moments(x, axes=(2,), keepdims=True)
    return F.broadcast_mul(F.broadcast_sub(x, mean), (variance + 1e-5) ** -0.5)


def pooled(F, x, gamma, beta):
    return F.broadcast_add(F.mean(F.relu(x), axis=2), F.sum(gamma * beta))


class Network(mx.gluon.HybridBlock):
    def __init__(self, norm):
        super().__init__(prefix='net_')
        self._norm = norm
        with self.name_scope():
            self.first = nn.Dense(8, flatten=False, in_units=8)
            self.gamma, self.beta = (self.params.get(name, shape=(1, 1, 8)) for name in ('gamma', 'beta'))

    def hybrid_forward(self, F, x, gamma, beta):
        x = self.first(x)
        normed = self._norm(F, x, gamma, beta)
        return F.relu(normed), normed * 2


def network_of(norm):
    """Return a network with a norm, and its splits over samples."""
    network = traced(initialised(Network(norm)), (4, 6, 8))
    return network, splits_of(network, data_parallel(), 2)


@pytest.mark.parametrize('norm, count', [(layer_norm, 9), (divided, 12), (root_mean_square, 6), (length, 3),
                                         (moments, 5)], ids=lambda value: getattr(value, '__name__', value))
def test_a_norm_is_one_line(norm, count):
    network, splits = network_of(norm)
    lines = report_lines(network.graph, network.dimensions, splits)
    assert [line.kind for line in lines] == ['FullyConnected', 'norm of %d operators' % count, 'relu', '_mul_scalar']
    assert [operator for line in lines for operator in line.operators] == network.graph.computing


def test_other_reductions_have_lines_of_their_own():
    network, splits = network_of(pooled)
    lines = report_lines(network.graph, network.dimensions, splits)
    assert [line.operators for line in lines] == [[operator] for operator in network.graph.computing]


def test_a_norm_with_several_splits_has_several_lines():
    network, splits = network_of(layer_norm)
    last = next(operator for operator in network.graph.computing if network.graph.label(operator) == 'broadcast_add0')
    splits[last.number] = Split((1, 2, 1), (0, 1))
    lines = report_lines(network.graph, network.dimensions, splits)
    assert all(len(line.operators) == 1 for line in lines)


def test_tables_and_notes_have_one_line_for_a_norm():
    network, _ = network_of(layer_norm)
    shards = NetworkShards(network.graph, whole_splits(network.graph, range(2)))
    text = layout_table('a plan', network.dimensions, shards, [], 2, {})
    row, note = (line for line in text.split('\n') if 'mean0' in line)
    assert row.startswith('mean0 to broadcast_add0  norm of 9 operators  copies 2') and '64 B' in row  # gamma and beta
    assert note.startswith('mean0 to broadcast_add0: whole on every worker, 2 times the work of a shard each')
    assert sum(': whole on every worker' in line for line in text.split('\n')) == 4
