"""Plans in files: choices for the store are read back, former files can still be loaded, and bad input is named."""
import json

import pytest
from mxnet.gluon import nn

from mxhybrid.base.errors import InputError
from mxhybrid.base.settings import TablePlan, resolve
from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.plan_json import from_json, load, save
from mxhybrid.parallel.plans.store_plan import StorePlan
from mxhybrid.parallel.plans.strategies import Explicit, by_name, data_parallel, grid, one_weird_trick

TABLE, OTHER = 'embedding0_weight', 'embedding1_weight'
STORE = StorePlan({TABLE: TablePlan('servers', 3), OTHER: TablePlan('allreduce')})


def network():
    net = nn.HybridSequential(prefix='net_')
    with net.name_scope():
        net.add(nn.Embedding(20, 4, sparse_grad=True), nn.Dense(20, flatten=False, activation='relu', in_units=4),
                nn.Flatten(), nn.Embedding(30, 4, sparse_grad=True), nn.Flatten(), nn.Dense(2, in_units=240))
    net.initialize()
    return traced(net, (8, 3), 0, 'float32')


@pytest.fixture(scope='module')
def net():
    return network()


def settled(net, plan):
    return plan.resolve(net.graph, net.dimensions, 2)


def explicit(net, store=STORE):
    splits = settled(net, data_parallel()).splits
    return Explicit({net.graph.label(net.graph.operators[number]): split for number, split in splits.items()},
                    net.graph.digest(), 2, store=store)


@pytest.mark.parametrize('plan', [data_parallel(), grid(model=2), one_weird_trick(),
                                  by_name({'dense*': {'channels': 2}})], ids=repr)
@pytest.mark.parametrize('store', [StorePlan(), STORE], ids=repr)
def test_files_keep_what_a_plan_says_of_the_store(tmp_path, plan, store):
    path = str(tmp_path / 'plan.json')
    save(path, plan.with_store(store))
    found = load(path)
    assert found.store == store and found.as_json() == plan.with_store(store).as_json()
    assert plan.store == StorePlan()


def test_explicit_plans_say_all(tmp_path, net):
    path = str(tmp_path / 'plan.json')
    save(path, explicit(net))
    loaded = load(path)
    assert loaded.as_json() == explicit(net).as_json()
    assert settled(net, loaded) == settled(net, explicit(net))
    assert settled(net, loaded).tables == {'net_' + TABLE: TablePlan('servers', 3), 'net_' + OTHER:
                                           TablePlan('allreduce')}
    assert settled(net, loaded).notes == {}
    assert loaded.store.words() == [TABLE + ': rows by servers, 3 partitions', OTHER + ': rows by allreduce']


@pytest.mark.parametrize('left_out', [[TABLE], [TABLE, OTHER]], ids=len)
def test_tables_that_are_left_out_are_named(net, left_out):
    store = StorePlan({label: one for label, one in STORE.tables.items() if label not in left_out})
    found = settled(net, explicit(net, store))
    assert {net.graph.label(net.graph.operators[number]) for number in found.notes} == set(left_out)
    assert all('the plan does not name this table' in note for note in found.notes.values())
    # A rule that names no table leaves none out.
    assert (settled(net, data_parallel().with_store(store)).notes == {}) == (not store.tables)


def test_files_of_another_format_are_refused(tmp_path, net):
    path = tmp_path / 'plan.json'
    content = explicit(net, StorePlan()).as_json()
    path.write_text(json.dumps({'format': 'mxhybrid.parallel 3', **content}))
    with pytest.raises(InputError, match="format 'mxhybrid.parallel 3', but this version reads 'mxhybrid.parallel 2'"):
        load(str(path))


@pytest.mark.parametrize('choices, message', [
    ({'tables': [TABLE]}, 'give an object by names of parameters'),
    ({'tables': {TABLE: 'servers'}}, "embedding0_weight is 'servers': give its route"),
    ({'tables': {TABLE: {'route': 'servers', 'count': 2}}}, 'give its route, and for servers partitions'),
    ({'tables': {TABLE: {}}}, 'has route=None: give one of servers, allreduce'),
    ({'tables': {TABLE: {'route': 'auto'}}}, "route='auto': give one of servers, allreduce, or leave the table out"),
    ({'tables': {TABLE: {'route': 'servers', 'partitions': 0}}}, 'has partitions=0: give a whole number of at least 1'),
    ({'tables': {TABLE: {'route': 'servers', 'partitions': True}}}, 'has partitions=True: give a whole number'),
    ({'tables': {TABLE: {'route': 'servers', 'partitions': 2.0}}}, 'has partitions=2.0: give a whole number'),
    ({'tables': {TABLE: {'route': 'allreduce', 'partitions': 2}}}, 'by allreduce there are none: leave them out'),
    ({'dense': 'lane'}, 'dense is not a key of a plan'),
], ids=lambda value: value if isinstance(value, str) else '')
def test_bad_choices_are_named(choices, message):
    with pytest.raises(InputError) as error:
        from_json({'plan': 'data_parallel', **choices})
    assert message in str(error.value)


def test_unknown_tables_are_refused(net):
    for label in ('dense0_weight', 'embedding7_weight', 'net_' + TABLE):
        with pytest.raises(InputError, match='%s is not a table of the network.* it has %s, %s'
                           % (label, TABLE, OTHER)):
            settled(net, data_parallel().with_store(StorePlan({label: TablePlan('servers')})))


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
