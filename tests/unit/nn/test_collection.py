"""Several tables in one call."""
import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import mxhybrid
from mxhybrid.kvstore.local_table import LocalTable

from ...helpers.gluon_nets import backward, initialised, step, trainer_of


def new_collection(**keywords):
    mx.random.seed(0)
    tables = {'user': mxhybrid.nn.HashEmbedding(3, 'float64'), 'item': mxhybrid.nn.Embedding(100, 2, 'float64')}
    tables['last item'] = tables['item']
    return initialised(mxhybrid.nn.EmbeddingCollection(tables, **keywords))


FEATURES = {'user': [-5, 7], 'item': ([3, 4, 3], [0, 1], 'mean'), 'last item': {'ids': [[3, 0]], 'padding': 0}}


def single_calls(collection):
    return [collection['user']([-5, 7]), collection['item']([3, 4, 3], [0, 1], 'mean'),
            collection['item']([[3, 0]], padding=0)]


def test_equals_single_calls():
    collection = new_collection()
    rows = collection(FEATURES)
    assert list(rows) == list(FEATURES)
    for found, expected in zip(rows.values(), single_calls(collection)):
        np.testing.assert_array_equal(found.asnumpy(), expected.asnumpy())
    np.testing.assert_array_equal(rows['last item'].asnumpy(), collection['item']([3]).asnumpy())


def test_trains_like_single_calls():
    collections = new_collection(), new_collection()
    for collection, calls in zip(collections, (lambda one: one(FEATURES).values(), single_calls)):
        trainer = trainer_of(collection, 'adam', learning_rate=0.001)
        for _ in range(3):
            step(trainer, lambda collection=collection, calls=calls: sum(
                (part ** 2).sum() for part in calls(collection)))
    for feature in FEATURES:
        keys = [3, 4, 7, 5]
        np.testing.assert_allclose(*(collection[feature](keys).asnumpy() for collection in collections), rtol=1e-12)


@pytest.mark.parametrize('grad_req', ['write', 'add'])
@pytest.mark.parametrize('ids, offsets', [([3, 4], [0, 0, 2]), ([], [0, 0, 0])])
def test_a_feature_learns_beside_empty_bags_of_its_table(grad_req, ids, offsets):
    collection = new_collection()
    collection['item'].weight.grad_req = grad_req
    trainer = trainer_of(collection)
    before = collection['item']([3, 4, 5, 6]).asnumpy()
    step(trainer, lambda: list(collection({'item': (np.array(ids, np.int64), offsets), 'last item': (
        [5, 6, 5], [0, 2, 3], 'mean')}).values()))
    gradient = [[len(ids) / 2]] * 2 + [[1.5], [0.5]]
    np.testing.assert_allclose(before - collection['item']([3, 4, 5, 6]).asnumpy(), np.repeat(gradient, 2, axis=1),
                               rtol=1e-12)


def test_all_rows_are_requested_in_one_call(monkeypatch):
    collection, calls = new_collection(), []
    deliver = LocalTable.deliver

    def noted(tables, rows, array):
        calls.append([(table.width, len(part.keys), part.rows.shape) for table, part in zip(tables, rows)])
        deliver(tables, rows, array)
    monkeypatch.setattr(LocalTable, 'deliver', staticmethod(noted))
    collection({'user': [[7, -5], [7, 7]], **{name: FEATURES[name] for name in ('item', 'last item')}})
    # Both features of the items request each row once.
    assert calls == [[(3, 2, (2, 2, 3)), (2, 2, (2, 2))]]


def train(together, optimizer, steps):
    """Train tables by losses that lack one feature of the batch each; return the tables' rows, and their sizes."""
    mx.random.seed(3)
    names = ['a', 'b', 'c', 'd']
    net = initialised(mxhybrid.nn.EmbeddingCollection({
        name: mxhybrid.nn.HashEmbedding(width, dtype) for name, width, dtype in zip(
            names, (3, 3, 2, 5), ('float64', 'float64', 'float32', 'float64'))}))
    trainer = trainer_of(net, optimizer, learning_rate=0.1)

    def losses(number):
        random = np.random.RandomState(number)
        ids = {name: random.randint(-9, 9, (4, 3)) for name in names}
        rows = net(ids) if together else {name: net[name](ids[name]) for name in names}
        return [(rows[name].astype('float64') ** 3).sum() for name in names if name != names[number % 4]]
    for number in range(steps):
        step(trainer, lambda number=number: losses(number), 2)
    return ([net[name](np.arange(-9, 9)).asnumpy() for name in names],
            [net[name].weight.table.statistics()['rows'] for name in names])


@pytest.mark.parametrize('optimizer', ['sgd', 'adam'])
def test_a_collection_trains_to_the_bits_of_single_tables(optimizer):
    results = [train(together, optimizer, 6) for together in (True, False)]
    for together, alone in zip(*(rows for rows, _ in results)):
        np.testing.assert_array_equal(together, alone)
    # A feature that the loss does not have gets no rows.
    assert results[0][1] == results[1][1] and min(results[0][1]) > 10
    assert train(True, optimizer, 1)[1][0] == 0


def test_attach_grad_takes_rows_out_of_the_graph():
    collection = new_collection()
    trainer, rows = trainer_of(collection), {}
    first = [collection[name]([1, 2]).asnumpy() for name in ('user', 'item')]

    def loss():
        rows.update(collection({'user': [1, 2], 'item': [1, 2]}))
        rows['user'].attach_grad()
        return (2 * rows['user']).sum() + rows['item'].sum()
    backward(loss)
    assert (rows['user'].grad == 2).asnumpy().all()
    trainer.step(1)
    np.testing.assert_array_equal(collection['user']([1, 2]).asnumpy(), first[0])
    np.testing.assert_array_equal(collection['item']([1, 2]).asnumpy(), first[1] - 1)


def test_parameters_and_default_combination():
    collection = new_collection(combine='mean')
    assert len(collection.collect_params().keys()) == 2
    np.testing.assert_array_equal(collection({'item': ([3, 4], [0])})['item'].asnumpy(),
                                  collection['item']([3, 4], [0], 'mean').asnumpy())


@pytest.mark.parametrize('features, message', [
    ({'age': [1]}, r"there is no table for the feature 'age': use features among user, item, last item"),
    ([1], r'a list: give a dict'), ({'item': ([1], [0], 'sum', None, 0, 1)}, r"'item' has 6 arguments"),
    ({'item': {'offsets': [0]}}, r"'item' has the arguments offsets: give ids"),
    ({'item': [100]}, r'id 100 is out of range')])
def test_refused(features, message):
    with pytest.raises(mxhybrid.InputError, match=message):
        new_collection()(features)


@pytest.mark.parametrize('tables', [{}, [1], {'user': gluon.nn.Embedding(3, 2)}])
def test_tables_are_refused(tables):
    with pytest.raises(mxhybrid.InputError, match='EmbeddingCollection: '):
        mxhybrid.nn.EmbeddingCollection(tables)
