"""Plans from files and dicts: they keep operators of one name apart, and choices for the store; bad input is named."""
import json

import mxnet as mx
import pytest
from mxnet.gluon import nn

from mxhybrid.base.errors import InputError
from mxhybrid.base.settings import TablePlan, resolve
from mxhybrid.parallel.ops.registry import rule_of
from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.megatron import megatron
from mxhybrid.parallel.plans.plan_json import as_plan, from_json, load, save
from mxhybrid.parallel.plans.store_plan import StorePlan
from mxhybrid.parallel.plans.strategies import Explicit, by_name, data_parallel, grid, one_weird_trick
from mxhybrid.parallel.sharding.split import Split

from ....helpers.gluon_nets import Net, initialised
from ....helpers.split_programs import explicit_plan, labelled, splits_of, whole_splits


def explicit(**changes):
    """Return a plan's JSON with some values of an operator replaced."""
    one = {'degrees': [2, 1], 'partials': 1, 'copies': 1, 'ranks': [0, 1], **changes.pop('one', {})}
    return {'plan': 'explicit', 'model': 'x', 'workers': 2, 'operators': {'dense0_fwd': one}, **changes}


def table(**choice):
    """Return a plan's JSON with the choice for a table."""
    return {'plan': 'data_parallel', 'tables': {TABLE: choice}}


TABLE, OTHER = 'embedding0_weight', 'embedding1_weight'


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
    ({'plan': 'explicit', 'workers': 2, 'operators': {}}, "plan: 'model' is missing: give a plan"),
    (explicit(workers=float('inf')), 'not a valid explicit plan'),
    (explicit(one={'degrees': [float('inf'), 1]}), 'not a valid explicit'),
    (explicit(one={'degrees': [1.9, 2]}), 'dense0_fwd has 1.9 in degrees: give whole numbers'),
    (explicit(one={'ranks': [0, '1']}), "dense0_fwd has '1' in ranks: give whole numbers"),
    (explicit(one={'copies': True}), 'dense0_fwd has True in copies: give whole numbers'),
    (explicit(workers=2.0), 'the plan has 2.0 in workers: give whole numbers'),
    (explicit(one={'partial': 2}),
     "dense0_fwd has the key 'partial': remove it; the keys are copies, degrees, partials, ranks"),
    (explicit(one={'ranks': [0]}), "'ranks': [0]}: give distinct ranks, whose number is the product of"),
    ({'plan': 'data_parallel', 'tables': [TABLE]}, 'give an object by names of parameters'),
    ({'plan': 'data_parallel', 'tables': {TABLE: 'servers'}}, "embedding0_weight is 'servers': give its route"),
    (table(route='servers', count=2), 'give its route, and for servers partitions'),
    (table(), 'has route=None: give one of servers, allreduce'),
    (table(route='auto'), "route='auto': give one of servers, allreduce, or leave the table out"),
    (table(route='servers', partitions=0), 'has partitions=0: give a whole number of at least 1'),
    (table(route='servers', partitions=True), 'has partitions=True: give a whole number'),
    (table(route='servers', partitions=2.0), 'has partitions=2.0: give a whole number'),
    (table(route='allreduce', partitions=2), 'by allreduce there are none: leave them out'),
    ({'plan': 'data_parallel', 'dense': 'lane'}, 'dense is not a key of a plan')],
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
    splits = splits_of(network, data_parallel(), 4)
    splits_by_op = {operator.op: splits[operator.number] for operator in network.graph.computing}
    assert splits_by_op['_random_normal_like'].degrees == (4, 1)
    assert splits_by_op['_sample_uniform'].ranks == (0,) and splits_by_op['_sample_uniform'].copies == 1
    with pytest.raises(InputError, match='cannot be split'):
        splits_of(network, explicit_plan(network, whole_splits(network.graph, (0, 1)), 4), 4)


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
    """A network that calls layers twice, one of them on its own output."""
    net = Net(lambda: [nn.Dense(8, in_units=8), nn.Dense(8, in_units=8, activation='relu')],
              lambda F, data, first, second: second(second(first(first(data)))))
    return traced(initialised(net), (4, 8))


@pytest.mark.parametrize('by_pattern, words', [
    ({'dense1_fwd': {'samples': 2, 'channels': 4}},
     r'it has 8 shards \(samples 2 x channels 4\), but there are 4 ranks: give numbers whose product is at most 4'),
    ({'dense1_fwd': {'channels': 4, 'partials': 2}},
     r'it has 8 shards \(channels 4 x partials 2\), but there are 4 ranks: give numbers whose product is at most 4'),
    ({'dense*': {'channels': 2}, 'conv*': {'channels': 2}},
     r"plan: 'conv\*' matches no operator: .*; there are dense0_fwd, dense0_fwd#2, ")], ids=str)
def test_patterns_that_do_not_fit_are_refused(twice, by_pattern, words):
    with pytest.raises(InputError, match=words):
        splits_of(twice, by_name(by_pattern), 4)


def test_a_plan_of_another_network_says_what_differs(twice):
    splits = labelled(twice.graph, splits_of(twice, data_parallel(), 4))
    for changed, words in (
            ({**splits, 'dense7_fwd': splits['dense0_fwd']}, 'it has a split of dense7_fwd'),
            ({key: split for key, split in splits.items() if key != 'dense1_fwd'}, 'it has no split of dense1_fwd'),
            (splits, 'the operators have the same names, but other shapes or settings')):
        with pytest.raises(InputError, match=r'for another network, or other shapes of data \(%s.*find' % words):
            splits_of(twice, Explicit(changed, '0123456789abcdef', 4), 4)


def test_the_name_of_a_plan_is_not_a_file():
    with pytest.raises(InputError, match="cannot read the file megatron: No such file.*: give the name of a plan's "
                                         'file, a plan of mxhybrid.parallel, or'):
        as_plan('megatron')


def test_calls_of_one_layer_have_labels_of_their_own(twice):
    assert [twice.graph.label(one) for one in twice.graph.computing] == [
        'dense0_fwd', 'dense0_fwd#2', 'dense1_fwd', 'dense1_relu_fwd', 'dense1_fwd#2', 'dense1_relu_fwd#2']
    assert [twice.graph.shape(one) for one in twice.graph.computing] == [(4, 8)] * 6


def test_calls_of_one_layer_may_be_split_otherwise(twice, tmp_path):
    path, splits = str(tmp_path / 'plan.json'), splits_of(twice, data_parallel(), 2)
    splits[twice.graph.computing[1].number] = Split((1, 2), (0, 1))
    save(path, explicit_plan(twice, splits))
    assert splits_of(twice, load(path), 2) == splits
    more = dict(load(path).splits, dense7_fwd=Split((1, 2), (0, 1)))
    with pytest.raises(InputError, match='dense7_fwd is not an operator of the network: remove it'):
        splits_of(twice, Explicit(more, twice.graph.digest(), 2), 2)


def test_a_pattern_is_for_all_calls_of_a_layer(twice):
    found = splits_of(twice, by_name({'dense0_fwd': {'channels': 2}, 'dense1_fwd#2': {'channels': 4}}), 4)
    assert [found[one.number].degrees for one in twice.graph.computing if one.op == 'FullyConnected'] == [
        (1, 2), (1, 2), (4, 1), (1, 4)]


@pytest.mark.parametrize('plan, is_said', [
    (grid(model=2), True), (by_name({'*': {'channels': 2}}), False),
    (data_parallel(), False), (grid(domain=(2,)), False)], ids=repr)
def test_a_plan_that_divides_no_weight_says_so(plan, is_said):
    network = traced(initialised(nn.Conv2D(4, 3, in_channels=2, prefix='conv0_')), (4, 2, 8, 8))
    undivided = plan.resolve(network.graph, network.dimensions, 2).undivided
    assert bool(undivided) == is_said and (not is_said or 'grid of model 2, divides no weight' in undivided)


def test_a_grid_has_whole_factors():
    with pytest.raises(InputError, match='domain=7'):
        grid(domain=7)
    assert json.loads(json.dumps(grid(domain=(2, 1)).as_json()))['domain'] == [2, 1]


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
    split = splits_of(network, data_parallel(), 2)[loss.number]
    assert split.copies == 1 and rule_of(loss).not_replicable


# -- choices for the store -----------------------------------------------------------------------------------------

STORE = StorePlan({TABLE: TablePlan('servers', 3), OTHER: TablePlan('allreduce')})


@pytest.fixture(scope='module')
def tables():
    """A network with two tables."""
    net = Net(lambda: [nn.Embedding(20, 4, sparse_grad=True), nn.Dense(20, flatten=False, in_units=4), nn.Flatten(),
                       nn.Embedding(30, 4, sparse_grad=True), nn.Flatten(), nn.Dense(2, in_units=240)])
    return traced(initialised(net), (8, 3))


def settled(network, plan):
    return plan.resolve(network.graph, network.dimensions, 2)


def stored(network, store=STORE):
    return explicit_plan(network, splits_of(network, data_parallel(), 2), store=store)


@pytest.mark.parametrize('plan', [
    data_parallel(), grid(model=2), grid(2, 3, sequence=4), megatron(2, 3, sequence=True), one_weird_trick(),
    by_name({'dense*': {'channels': 2}})], ids=repr)
@pytest.mark.parametrize('store', [StorePlan(), STORE], ids=repr)
def test_files_keep_what_a_plan_says_of_the_store(tmp_path, plan, store):
    path = str(tmp_path / 'plan.json')
    save(path, plan.with_store(store))
    found = load(path)
    assert found.store == store and found.as_json() == plan.with_store(store).as_json()
    assert plan.store == StorePlan()


def test_explicit_plans_say_all(tmp_path, tables):
    path = str(tmp_path / 'plan.json')
    save(path, stored(tables))
    loaded = load(path)
    assert loaded.as_json() == stored(tables).as_json()
    assert settled(tables, loaded) == settled(tables, stored(tables))
    assert settled(tables, loaded).tables == {'net_' + TABLE: TablePlan('servers', 3), 'net_' + OTHER:
                                           TablePlan('allreduce')}
    assert settled(tables, loaded).notes == {}
    assert loaded.store.words() == [TABLE + ': rows by servers, 3 partitions', OTHER + ': rows by allreduce']


@pytest.mark.parametrize('left_out', [[TABLE], [TABLE, OTHER]], ids=len)
def test_tables_that_are_left_out_are_named(tables, left_out):
    store = StorePlan({label: one for label, one in STORE.tables.items() if label not in left_out})
    found = settled(tables, stored(tables, store))
    assert {tables.graph.label(tables.graph.operators[number]) for number in found.notes} == set(left_out)
    assert all('the plan does not name this table' in note for note in found.notes.values())
    # A rule that names no table leaves none out.
    assert (settled(tables, data_parallel().with_store(store)).notes == {}) == (not store.tables)


def test_files_of_another_format_are_refused(tmp_path, tables):
    path = tmp_path / 'plan.json'
    content = stored(tables, StorePlan()).as_json()
    path.write_text(json.dumps({'format': 'mxhybrid.parallel 3', **content}))
    with pytest.raises(InputError, match="format 'mxhybrid.parallel 3', but this version reads 'mxhybrid.parallel 2'"):
        load(str(path))


def test_unknown_tables_are_refused(tables):
    for label in ('dense0_weight', 'embedding7_weight', 'net_' + TABLE):
        with pytest.raises(InputError, match='%s is not a table of the network.* it has %s, %s'
                           % (label, TABLE, OTHER)):
            settled(tables, data_parallel().with_store(StorePlan({label: TablePlan('servers')})))


def test_settings_count_before_plans():
    tables = {'a[0]': TablePlan('allreduce'), 'b': TablePlan('servers', 3), 'c': TablePlan('servers')}
    settings = resolve({}, {}).with_tables(tables)
    assert [settings.route_for(name) for name in ('a[0]', 'a0', 'b', 'c')] == [
        'allreduce', 'auto', 'servers', 'servers']
    assert [settings.partitions_for(name) for name in ('a[0]', 'b', 'c')] == [None, 3, None]
    settings = resolve({'routes': 'b=allreduce,c=auto', 'partitions': 'auto'}, {}).with_tables(tables)
    assert [settings.route_for(name) for name in ('a[0]', 'b', 'c')] == ['allreduce', 'allreduce', 'auto']
    assert settings.is_auto('b') and settings.partitions_for('b') is None
    assert resolve({'routes': 'auto'}, {}).with_tables(tables).route_for('b') == 'auto'
    assert resolve({}, {'MXHYBRID_ROUTES': 'servers'}).with_tables(tables).route_for('a[0]') == 'servers'
