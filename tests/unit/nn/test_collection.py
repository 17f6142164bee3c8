"""Several tables in one call."""
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import mxhybrid
from mxhybrid.kvstore.table_parameter import TableParameter


def new_collection(**keywords):
    mx.random.seed(0)
    tables = {'user': mxhybrid.nn.HashEmbedding(3, 'float64'), 'item': mxhybrid.nn.Embedding(100, 2, 'float64')}
    tables['last item'] = tables['item']
    collection = mxhybrid.nn.EmbeddingCollection(tables, **keywords)
    collection.initialize()
    return collection


FEATURES = {'user': [-5, 7], 'item': ([3, 4, 3], [0, 1], 'mean'), 'last item': {'ids': [[3, 0]], 'padding': 0}}


def test_equals_single_calls():
    collection = new_collection()
    rows = collection(FEATURES)
    assert list(rows) == list(FEATURES)
    np.testing.assert_array_equal(rows['user'].asnumpy(), collection['user']([-5, 7]).asnumpy())
    np.testing.assert_array_equal(rows['item'].asnumpy(), collection['item']([3, 4, 3], [0, 1], 'mean').asnumpy())
    np.testing.assert_array_equal(rows['last item'].asnumpy(), collection['item']([3]).asnumpy())


def test_trains_like_single_calls():
    collections = new_collection(), new_collection()
    for collection, together in zip(collections, (True, False)):
        trainer = gluon.Trainer(collection.collect_params(), 'adam', kvstore='hybrid')
        for _ in range(3):
            with autograd.record():
                if together:
                    rows = list(collection(FEATURES).values())
                else:
                    rows = [collection['user']([-5, 7]), collection['item']([3, 4, 3], [0, 1], 'mean'),
                            collection['item']([[3, 0]], padding=0)]
                loss = sum((part ** 2).sum() for part in rows)
            loss.backward()
            trainer.step(1)
    for feature in FEATURES:
        keys = [3, 4, 7, 5]
        np.testing.assert_allclose(*(collection[feature](keys).asnumpy() for collection in collections), rtol=1e-12)


def test_all_rows_are_requested_before_the_first_are_used(monkeypatch):
    collection, calls = new_collection(), []

    def noted(name):
        original = getattr(TableParameter, name)

        def call(param, keys, *arguments):
            calls.append((name, param.width, len(keys)))
            return original(param, keys, *arguments)
        monkeypatch.setattr(TableParameter, name, call)

    noted('request')
    noted('looked_up')
    collection(FEATURES)
    # Both features of the items request each row once.
    assert calls == [('request', 3, 2), ('request', 2, 2), ('looked_up', 3, 2), ('looked_up', 2, 2)]


def test_parameters_and_default_combination():
    collection = new_collection(combine='mean')
    assert len(collection.collect_params().keys()) == 2
    np.testing.assert_array_equal(collection({'item': ([3, 4], [0])})['item'].asnumpy(),
                                  collection['item']([3, 4], [0], 'mean').asnumpy())


@pytest.mark.parametrize('features, message', [
    ({'age': [1]}, r"there is no table for 'age': the features are user, item, last item"),
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
