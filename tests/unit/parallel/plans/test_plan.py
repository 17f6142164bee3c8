"""Plans from files and dicts: anything else is refused by its name, and operators of one name are kept apart."""
import json

import mxnet as mx
import pytest
from mxnet.gluon import nn

from mxhybrid.base.errors import InputError
from mxhybrid.parallel.ops.registry import rule_of
from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.plan_json import as_plan, from_json, load, save
from mxhybrid.parallel.plans.strategies import Explicit, by_name, data_parallel, grid
from mxhybrid.parallel.sharding.split import Split, whole_on


class Twice(mx.gluon.HybridBlock):
    """Calls layers twice, one of them on its own output."""

    def __init__(self):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.first, self.second = nn.Dense(8, in_units=8), nn.Dense(8, in_units=8, activation='relu')

    def hybrid_forward(self, F, data):
        return self.second(self.second(self.first(self.first(data))))


def explicit(**changes):
    """Return a plan's JSON with some values of an operator replaced."""
    one = {'degrees': [2, 1], 'partials': 1, 'copies': 1, 'ranks': [0, 1], **changes.pop('one', {})}
    return {'plan': 'explicit', 'model': 'x', 'workers': 2, 'operators': {'dense0_fwd': one}, **changes}


def without_model():
    found = explicit()
    del found['model']
    return found


@pytest.mark.parametrize('value, words', [
    ({'plan': 'grid', 'domain': 5}, 'grid: domain=5: give a list'),
    ({'plan': 'grid', 'domain': None}, 'grid: domain=None: give a list'),
    ({'plan': 'grid', 'domain': ['2']}, "grid: domain=['2']: give a list"),
    ({'plan': 'layers', 'layers': {'dense*': [1]}}, "plan: 'dense*' has the value [1]: give degrees"),
    ({'plan': 'layers', 'layers': {'dense*': {'ranks': 5}}}, "plan: 'dense*' has ranks=5: give a list"),
    ({'plan': 'layers', 'layers': {'dense*': {'ranks': [0.5]}}}, "plan: 'dense*' has ranks=[0.5]: give a list"),
    ({'plan': 'grid', 'modle': 2},
     "modle is not a key of a plan of kind 'grid': remove it; the keys are batch, domain"),
    ({'plan': 'data_parallel', 'sums': 'lane'}, 'sums is not a key'), (explicit(densee='lane'), 'densee is not a key'),
    (without_model(), "plan: 'model' is missing: give a plan"),
    (explicit(workers=float('inf')), 'not a valid explicit plan'),
    (explicit(one={'degrees': [float('inf'), 1]}), 'not a valid explicit'),
    (explicit(one={'degrees': [1.9, 2]}), 'dense0_fwd has 1.9 in degrees: give whole numbers'),
    (explicit(one={'ranks': [0, '1']}), "dense0_fwd has '1' in ranks: give whole numbers"),
    (explicit(one={'copies': True}), 'dense0_fwd has True in copies: give whole numbers'),
    (explicit(workers=2.0), 'the plan has 2.0 in workers: give whole numbers'),
    (explicit(one={'partial': 2}),
     "dense0_fwd has the key 'partial': remove it; the keys are copies, degrees, partials, ranks"),
    (explicit(one={'ranks': [0]}), "'ranks': [0]}: give distinct ranks, whose number is the product of")],
    ids=lambda value: str(value)[:48])
def test_values_that_are_no_plans_are_refused(value, words):
    with pytest.raises(InputError) as raised:
        from_json(value)
    assert words in str(raised.value)


def network_of(make, shape=(8, 6)):
    return traced(nn.HybridLambda(make), shape)


@pytest.mark.parametrize('make, words', [
    (lambda F, x: F.reshape(x, shape=(7, 11)), "shapes {'data': (8, 6)}: "),
    (lambda F, x: F.broadcast_add(x, F.random.uniform(shape=(1, 6))), 'would draw other numbers on each worker'),
    (lambda F, x: F.contrib.foreach(lambda row, total: (row + total, row + total), x, F.zeros_like(x).slice_axis(
        axis=0, begin=0, end=1).reshape((6,)))[0], '(_foreach) contains a network of its own')], ids=range(3))
def test_networks_that_cannot_be_split_are_refused_by_name(make, words):
    with pytest.raises(InputError) as raised:
        network_of(make)
    assert words in str(raised.value)


@pytest.mark.parametrize('shape', [(3_000_000_000, 6), (10 ** 20, 6)])
def test_arrays_that_are_too_large_are_refused(shape):
    with pytest.raises(InputError, match='does not take data of shapes'):
        network_of(lambda F, x: F.tanh(x), shape)


@pytest.mark.parametrize('axis', ['x', 0.0, True, 2])
def test_a_batch_axis_is_a_dimension(axis):
    with pytest.raises(InputError, match='batch_axis='):
        traced(nn.Dense(4, in_units=6), (8, 6), axis)


def test_numbers_are_drawn_once():
    """Each worker draws for its own samples, or one worker for all: copies would not be the same."""
    def drawing(F, x):
        low = F.mean(x, axis=1)
        return F.broadcast_add(F.sample_uniform(low, low + 1, shape=6), F.random.normal_like(x))
    network = network_of(drawing)
    splits = data_parallel().resolve(network.graph, network.dimensions, 4).splits
    splits_by_op = {operator.op: splits[operator.number] for operator in network.graph.computing}
    assert splits_by_op['_random_normal_like'].degrees == (4, 1)
    assert splits_by_op['_sample_uniform'].ranks == (0,) and splits_by_op['_sample_uniform'].copies == 1
    with pytest.raises(InputError, match='cannot be split'):
        Explicit({network.graph.label(operator): whole_on(len(network.graph.shape(operator)), (0, 1))
                  for operator in network.graph.computing}, network.graph.digest(), 4).resolve(
            network.graph, network.dimensions, 4)


def test_slopes_that_are_drawn_have_no_copies():
    found = {}
    for kind in ('rrelu', 'leaky'):
        network = network_of(lambda F, x, kind=kind: F.LeakyReLU(x, act_type=kind))
        found[kind], = (rule_of(one).not_replicable for one in network.graph.computing)
    assert found == {'rrelu': True, 'leaky': False}


def test_files_that_cannot_be_read(tmp_path):
    path = tmp_path / 'plan.json'
    for text in ('{', '[' * 100000, '\udc80'):
        path.write_text(text, encoding='utf-8', errors='surrogateescape')
        with pytest.raises(InputError, match='cannot read .*plan.json'):
            load(str(path))


@pytest.fixture(scope='module')
def twice():
    net = Twice()
    net.initialize()
    return traced(net, (4, 8))


def test_degrees_that_do_not_fit_name_their_product(twice):
    for request, words in (({'samples': 2, 'channels': 4}, r'8 shards \(samples 2 x channels 4\)'),
                           ({'channels': 4, 'partials': 2}, r'8 shards \(channels 4 x partials 2\)')):
        with pytest.raises(InputError, match='it has %s, but there are 4 ranks: give numbers whose product is at most 4'
                                             % words):
            by_name({'dense1_fwd': request}).resolve(twice.graph, twice.dimensions, 4)


def test_a_plan_of_another_network_says_what_differs(twice):
    splits = data_parallel().resolve(twice.graph, twice.dimensions, 4).splits
    of_twice = {twice.graph.label(one): splits[one.number] for one in twice.graph.computing}
    for changed, words in (
            ({**of_twice, 'dense7_fwd': splits[twice.graph.computing[0].number]}, 'it has a split of dense7_fwd'),
            ({key: split for key, split in of_twice.items() if key != 'dense1_fwd'}, 'it has no split of dense1_fwd'),
            (of_twice, 'the operators have the same names, but other shapes or settings')):
        with pytest.raises(InputError, match=r'for another network, or other shapes of data \(%s.*find' % words):
            Explicit(changed, '0123456789abcdef', 4).resolve(twice.graph, twice.dimensions, 4)


def test_the_name_of_a_plan_is_not_a_file():
    with pytest.raises(InputError, match="cannot read the file megatron: No such file.*: give the name of a plan's "
                                         'file, a plan of mxhybrid.parallel, or'):
        as_plan('megatron')


def test_calls_of_one_layer_have_labels_of_their_own(twice):
    assert [twice.graph.label(one) for one in twice.graph.computing] == [
        'dense0_fwd', 'dense0_fwd#2', 'dense1_fwd', 'dense1_relu_fwd', 'dense1_fwd#2', 'dense1_relu_fwd#2']
    assert [twice.graph.shape(one) for one in twice.graph.computing] == [(4, 8)] * 6


def test_calls_of_one_layer_may_be_split_otherwise(twice, tmp_path):
    graph, path = twice.graph, str(tmp_path / 'plan.json')
    splits = data_parallel().resolve(graph, twice.dimensions, 2).splits
    splits[graph.computing[1].number] = Split((1, 2), (0, 1))
    save(path, Explicit({graph.label(graph.operators[number]): split for number, split in splits.items()},
                        graph.digest(), 2))
    assert load(path).resolve(graph, twice.dimensions, 2).splits == splits
    more = dict(load(path).splits, dense7_fwd=Split((1, 2), (0, 1)))
    with pytest.raises(InputError, match='dense7_fwd is not an operator of the network: remove it'):
        Explicit(more, graph.digest(), 2).resolve(graph, twice.dimensions, 2)


def test_a_pattern_is_for_all_calls_of_a_layer(twice):
    found = by_name({'dense0_fwd': {'channels': 2}, 'dense1_fwd#2': {'channels': 4}}).resolve(
        twice.graph, twice.dimensions, 4).splits
    assert [found[one.number].degrees for one in twice.graph.computing if one.op == 'FullyConnected'] == [
        (1, 2), (1, 2), (4, 1), (1, 4)]


@pytest.mark.parametrize('plan, is_said', [
    (grid(model=2), True), (by_name({'*': {'channels': 2}}), False),
    (data_parallel(), False), (grid(domain=(2,)), False)], ids=repr)
def test_a_plan_that_divides_no_weight_says_so(plan, is_said):
    net = nn.Conv2D(4, 3, in_channels=2, prefix='conv0_')
    net.initialize()
    network = traced(net, (4, 2, 8, 8))
    undivided = plan.resolve(network.graph, network.dimensions, 2).undivided
    assert bool(undivided) == is_said and (not is_said or 'grid of model 2, divides no weight' in undivided)


def test_a_grid_has_whole_factors():
    with pytest.raises(InputError, match='domain=7'):
        grid(domain=7)
    assert json.loads(json.dumps(grid(domain=(2, 1)).as_json()))['domain'] == [2, 1]


def test_a_pattern_that_fits_nothing_is_named(twice):
    with pytest.raises(InputError,
                       match=r"plan: 'conv\*' matches no operator: .*; there are dense0_fwd, dense0_fwd#2, "):
        by_name({'dense*': {'channels': 2}, 'conv*': {'channels': 2}}).resolve(twice.graph, twice.dimensions, 2)


class Nameless(mx.gluon.HybridBlock):
    """A network without a prefix: MXNet names its operators by those that it named before."""

    def __init__(self):
        super().__init__(prefix='')
        self.first, self.second = nn.Dense(8, in_units=8), nn.Dense(8, in_units=8)

    def hybrid_forward(self, F, data):
        return F.tanh(self.second(F.relu(self.first(F.relu(data)))))


def test_a_network_without_prefix_keeps_its_names(tmp_path):
    net, path = Nameless(), str(tmp_path / 'plan.json')
    net.initialize()
    first = traced(net, (4, 8))
    names = [first.graph.label(operator) for operator in first.graph.computing]
    assert [name for name in names if 'dense' not in name] == ['relu0', 'relu1', 'tanh0']
    save(path, Explicit({first.graph.label(first.graph.operators[number]): split for number, split in
                         data_parallel().resolve(first.graph, first.dimensions, 2).splits.items()},
                        first.graph.digest(), 2))
    again = traced(net, (4, 8))
    assert [again.graph.label(operator) for operator in again.graph.computing] == names
    assert load(path).resolve(again.graph, again.dimensions, 2).splits


@pytest.mark.parametrize('axis, expected', [
    (0, ('samples', 'length', 'channels')), (1, ('length', 'samples', 'channels')),
    (2, ('dimension0', 'dimension1', 'samples')), (None, ('dimension0', 'dimension1', 'channels'))])
def test_no_two_dimensions_have_one_name(axis, expected):
    net = nn.HybridLambda(lambda F, x, other: F.broadcast_add(F.tanh(x), F.reshape(F.sum(other), shape=(1, 1, 1))))
    network = traced(net, [(4, 5, 6), (7,)], [axis, 0])
    names = {one.op: network.dimensions.names(one) for one in network.graph.computing}
    assert names['tanh'] == expected
    assert all(len(set(found)) == len(found) for found in names.values())


def scalar(F, x):
    return F.contrib.allclose(x, x).reshape((1,))


def test_a_scalar_is_refused_for_unknown_shapes():
    with pytest.raises(InputError, match=r'allclose.* returns an array of shape \(\)'):
        network_of(scalar)


def test_a_scalar_has_no_dimensions_to_name():
    with mx.util.np_shape(True):
        network = network_of(scalar)
    names = {one.op: network.dimensions.names(one) for one in network.graph.computing}
    assert names['_contrib_allclose'] == () and names['Reshape'] == ('channels',)


#: Operators that ignore the gradient of their output, or add to it.
LOSSES = {
    'make_loss': lambda F, x: F.make_loss(F.mean(x)), 'MakeLoss': lambda F, x: F.MakeLoss(F.sum(x)),
    'SoftmaxOutput': lambda F, x: F.SoftmaxOutput(F.sum(x, axis=0, keepdims=True), F.ones((1,))),
    'LinearRegressionOutput': lambda F, x: F.LinearRegressionOutput(F.sum(x), F.ones((1,))),
    'LogisticRegressionOutput': lambda F, x: F.LogisticRegressionOutput(F.sum(x), F.ones((1,))),
    'MAERegressionOutput': lambda F, x: F.MAERegressionOutput(F.sum(x), F.ones((1,))),
    'SVMOutput': lambda F, x: F.SVMOutput(F.sum(x, axis=0, keepdims=True), F.ones((1,)))}


@pytest.mark.parametrize('name', sorted(LOSSES))
def test_a_loss_has_no_copies(name):
    """Each would give all of its gradient."""
    network = network_of(LOSSES[name])
    loss, = [one for one in network.graph.computing if one.op == name]
    split = data_parallel().resolve(network.graph, network.dimensions, 2).splits[loss.number]
    assert split.copies == 1 and rule_of(loss).not_replicable
