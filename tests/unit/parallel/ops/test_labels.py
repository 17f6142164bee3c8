"""Digests and labels of networks do not depend on the numbers in names."""
import mxnet as mx
import pytest
from mxnet import gluon
from mxnet.gluon import nn, rnn

from mxhybrid.parallel import by_name, data_parallel
from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.plan_json import from_json
from mxhybrid.parallel.plans.strategies import Explicit

SHAPE = (4, 5, 6)


class Net(gluon.HybridBlock):
    """A network of some children, which a function calls; it makes them in its name scope, or outside."""

    def __init__(self, make, call=None, scope=True, prefix=None):
        super().__init__(prefix=prefix)
        self._call = call or (lambda F, x, *children: children[0](x))
        if scope:
            with self.name_scope():
                self._add(make())
        else:
            self._add(make())

    def _add(self, children):
        self.children = list(children)
        for child in self.children:
            self.register_child(child)

    def hybrid_forward(self, F, x):
        return self._call(F, x, *self.children)


class Pair(gluon.HybridBlock):
    """Two dense layers that are made outside of any name scope."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Dense(6, flatten=False), nn.Dense(6, flatten=False)

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


def shared():
    first = dense()
    return [first, dense(params=first.params)]


NETWORKS = {
    'a layer without states': lambda **where: Net(lambda: [rnn.LSTM(6, layout='NTC')], **where),
    'two directions': lambda **where: Net(lambda: [rnn.GRU(6, 2, layout='NTC', bidirectional=True)], **where),
    'an unrolled cell': lambda **where: Net(
        lambda: [rnn.LSTMCell(6)], lambda F, x, cell: cell.unroll(5, x, layout='NTC')[0], **where),
    'steps of a cell': lambda **where: Net(lambda: [rnn.GRUCell(6)], steps, **where),
    'cells of cells': lambda **where: Net(lambda: [rnn.BidirectionalCell(rnn.RNNCell(6), rnn.ResidualCell(
        rnn.GRUCell(6)))], lambda F, x, cell: cell.unroll(5, x, layout='NTC')[0], **where),
    'batch norm': lambda **where: Net(lambda: [dense(), nn.BatchNorm(axis=2)], lambda F, x, a, b: b(a(x)), **where),
    'functions': lambda **where: Net(lambda: [nn.HybridLambda('tanh'), nn.HybridLambda(lambda F, x: F.relu(x) + 1)],
                                     lambda F, x, a, b: b(a(x)), **where),
    'shared weights': lambda **where: Net(shared, lambda F, x, a, b: b(a(x)), **where),
    'a layer twice': lambda **where: Net(lambda: [dense()], lambda F, x, a: a(a(x)), **where),
    'blocks in blocks': lambda **where: Net(lambda: [Pair(), dense(), Pair()],
                                          lambda F, x, a, b, c: c(b(a(x))), **where),
    'operators with names': lambda **where: Net(
        lambda: [dense(prefix='own_')], lambda F, x, a: F.relu(F.tanh(a(x)), name='last') * F.sigmoid(x), **where),
    'a network without a prefix': lambda **where: Net(
        lambda: [dense()], lambda F, x, a: F.relu(a(F.relu(x))), **dict(where, prefix='')),
    'a table': lambda **where: Net(lambda: [nn.Embedding(9, 6, sparse_grad=True), dense()],
                                   lambda F, x, table, a: a(table(x)), **where)}


def network(name, **where):
    net = NETWORKS[name](**where)
    net.initialize()
    return traced(net, SHAPE)


def labels(traced_network):
    graph = traced_network.graph
    return [graph.label(operator) for operator in graph.operators]


def saved(traced_network, plan=data_parallel()):  # noqa: B008
    """Return the JSON value that a file has for a plan of a network, and the splits."""
    graph = traced_network.graph
    splits = plan.resolve(graph, traced_network.dimensions, 2).splits
    return Explicit({graph.label(graph.operators[number]): split for number, split in splits.items()}, graph.digest(),
                    2).as_json(), splits


@pytest.mark.parametrize('scope', [True, False])
@pytest.mark.parametrize('name', NETWORKS)
def test_a_network_made_again_has_the_same_labels(name, scope):
    first = network(name, scope=scope)
    for other in NETWORKS:
        network(other, scope=not scope)
    second = network(name, scope=scope)
    assert labels(first) == labels(second) and first.blocks == second.blocks
    plan, splits = saved(first)
    assert from_json(plan).resolve(second.graph, second.dimensions, 2).splits == splits


def test_a_called_cell_has_the_same_labels():
    net = NETWORKS['steps of a cell']()
    net.initialize()
    before = labels(traced(net, SHAPE))
    net(mx.nd.ones(SHAPE))
    assert labels(traced(net, SHAPE)) == before


@pytest.mark.parametrize('name', NETWORKS)
def test_a_plan_fits_the_same_network_with_other_names(name):
    first, second = network(name), network(name, scope=False, prefix='chosen_by_the_script_')
    plan, splits = saved(first)
    assert first.graph.digest() == second.graph.digest()
    assert from_json(plan).resolve(second.graph, second.dimensions, 2).splits == splits


def test_splits_follow_labels_whatever_their_order():
    found = network('blocks in blocks', scope=False)
    plan, splits = saved(found, by_name({'dense1_fwd': {'channels': 2}}))
    plan['operators'] = dict(sorted(plan['operators'].items(), reverse=True))
    assert from_json(plan).resolve(found.graph, found.dimensions, 2).splits == splits


def test_layers_outside_of_scopes_are_numbered_in_the_network():
    for _ in range(2):
        found = network('blocks in blocks', scope=False)
        assert [label for label in labels(found) if 'fwd' in label] == ['dense%d_fwd' % at for at in range(5)]
    assert found.blocks[0] == 'pair0_' and 'dense4_' in found.blocks


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
    for net in nets:
        net.initialize()
    digests = {traced(net, SHAPE).graph.digest() for net in nets} | {traced(nets[0], (4, 3, 6)).graph.digest()}
    assert len(digests) == len(nets) + 1
