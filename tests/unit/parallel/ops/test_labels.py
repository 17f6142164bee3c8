"""Digests and labels of networks do not depend on the numbers in names."""
import mxnet as mx
import pytest
from mxnet import gluon
from mxnet.gluon import nn, rnn

from mxhybrid.parallel import by_name, data_parallel
from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.plan_json import from_json

from ....helpers.gluon_nets import Net, initialised
from ....helpers.split_programs import explicit_plan, splits_of

SHAPE = (4, 5, 6)


class Pair(gluon.HybridBlock):
    """Two dense layers that are made outside of any name scope."""

    def __init__(self):
        super().__init__()
        self.first, self.second = dense(), dense()

    def hybrid_forward(self, F, x):
        return self.second(self.first(x))


def dense(**options):
    return nn.Dense(6, flatten=False, **options)


def steps(F, x, cell, *_):
    """Call a cell step by step, which counts its calls."""
    state = [F.zeros_like(F.slice_axis(x, axis=1, begin=0, end=1).reshape((0, -1)))] * len(cell.state_info())
    outputs = []
    for at in range(3):
        output, state = cell(F.slice_axis(x, axis=1, begin=at, end=at + 1).reshape((0, -1)), state)
        outputs.append(output)
    return F.concat(*outputs, dim=1)


def unrolled(F, x, cell):
    return cell.unroll(5, x, layout='NTC')[0]


def shared():
    first = dense()
    return [first, dense(params=first.params)]


#: Functions that make layers, and functions that call these if they are not called one after the other.
NETWORKS = {
    'a layer without states': (lambda: [rnn.LSTM(6, layout='NTC')],),
    'two directions': (lambda: [rnn.GRU(6, 2, layout='NTC', bidirectional=True)],),
    'an unrolled cell': (lambda: [rnn.LSTMCell(6)], unrolled), 'steps of a cell': (lambda: [rnn.GRUCell(6)], steps),
    'cells of cells': (lambda: [rnn.BidirectionalCell(rnn.RNNCell(6), rnn.ResidualCell(rnn.GRUCell(6)))], unrolled),
    'batch norm': (lambda: [dense(), nn.BatchNorm(axis=2)],),
    'functions': (lambda: [nn.HybridLambda('tanh'), nn.HybridLambda(lambda F, x: F.relu(x) + 1)],),
    'shared weights': (shared,), 'a layer twice': (lambda: [dense()], lambda F, x, a: a(a(x))),
    'blocks in blocks': (lambda: [Pair(), dense(), Pair()],),
    'operators with names': (lambda: [dense(prefix='own_')],
                             lambda F, x, a: F.relu(F.tanh(a(x)), name='last') * F.sigmoid(x)),
    'a network without a prefix': (lambda: [dense()], lambda F, x, a: F.relu(a(F.relu(x)))),
    'a table': (lambda: [nn.Embedding(9, 6, sparse_grad=True), dense()],)}


def network(name, in_scope=True, prefix=None):
    prefix = '' if name == 'a network without a prefix' else prefix
    return traced(initialised(Net(*NETWORKS[name], prefix=prefix, in_scope=in_scope)), SHAPE)


def labels(traced_network):
    return [traced_network.graph.label(operator) for operator in traced_network.graph.operators]


def saved(traced_network, plan=data_parallel()):  # noqa: B008
    """Return the JSON value that a file has for a plan of a network, and the splits."""
    splits = splits_of(traced_network, plan, 2)
    return explicit_plan(traced_network, splits).as_json(), splits


@pytest.mark.parametrize('in_scope', [True, False])
@pytest.mark.parametrize('name', NETWORKS)
def test_a_network_made_again_has_the_same_labels(name, in_scope):
    first = network(name, in_scope)
    for other in NETWORKS:
        network(other, not in_scope)
    second = network(name, in_scope)
    assert labels(first) == labels(second) and first.blocks == second.blocks
    plan, splits = saved(first)
    assert splits_of(second, from_json(plan), 2) == splits


def test_a_called_cell_has_the_same_labels():
    net = initialised(Net(*NETWORKS['steps of a cell']))
    before = labels(traced(net, SHAPE))
    net(mx.nd.ones(SHAPE))
    assert labels(traced(net, SHAPE)) == before


@pytest.mark.parametrize('name', NETWORKS)
def test_a_plan_fits_the_same_network_with_other_names(name):
    first, second = network(name), network(name, False, 'chosen_by_the_script_')
    plan, splits = saved(first)
    assert first.graph.digest() == second.graph.digest()
    assert splits_of(second, from_json(plan), 2) == splits


def test_splits_follow_labels_whatever_their_order():
    found = network('blocks in blocks', in_scope=False)
    plan, splits = saved(found, by_name({'dense1_fwd': {'channels': 2}}))
    plan['operators'] = dict(sorted(plan['operators'].items(), reverse=True))
    assert splits_of(found, from_json(plan), 2) == splits


def test_layers_outside_of_scopes_are_numbered_in_the_network():
    for _ in range(2):
        found = network('blocks in blocks', in_scope=False)
        assert [label for label in labels(found) if 'fwd' in label] == ['dense%d_fwd' % at for at in range(5)]
    assert found.blocks[0] == 'pair0_' and 'dense4_' in found.blocks


def test_operators_without_a_scope_are_numbered_in_the_network():
    """MXNet numbers them in the process."""
    for _ in range(2):
        found = network('a network without a prefix')
        assert [label for label in labels(found) if 'relu' in label] == ['relu0', 'relu1']


def test_different_networks_have_different_digests():
    def outputs(F, x, a, b):
        return a(x), b(x)
    nets = [Net(lambda: [dense(), dense()], call) for call in (
        lambda F, x, a, b: b(a(x)), lambda F, x, a, b: a(a(x)), lambda F, x, a, b: a(x), outputs,
        lambda F, x, a, b: outputs(F, x, a, b)[::-1] + (x,), lambda F, x, a, b: a(x) + b(x),
        lambda F, x, a, b: a(x) * b(x), lambda F, x, a, b: a(x) + a(x), lambda F, x, a, b: F.split(a(x), 2, axis=2)[0],
        lambda F, x, a, b: F.split(a(x), 2, axis=2)[1])]
    nets += [Net(lambda: [dense(use_bias=False)]), Net(lambda: [nn.Dense(7, flatten=False)]),
             Net(lambda: [nn.Dense(6)]), Net(lambda: [nn.LayerNorm()]), Net(lambda: [nn.LayerNorm(epsilon=1e-3)])]
    digests = {traced(initialised(net), SHAPE).graph.digest() for net in nets}
    digests.add(traced(nets[0], (4, 3, 6)).graph.digest())
    assert len(digests) == len(nets) + 1
