"""Prefetching outside of jobs: bad input is refused, and batches are not changed."""
import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon.contrib.nn import SparseEmbedding

import mxhybrid

from ...helpers.steps import step


def test_only_row_sparse_rows_can_be_asked_for():
    dense = gluon.Parameter('dense', shape=(3, 2))
    with pytest.raises(mxhybrid.InputError, match='not a row_sparse parameter'):
        mxhybrid.prefetch(dense, [1])
    with pytest.raises(mxhybrid.InputError, match="'embed' is not"):
        mxhybrid.prefetch('embed', [1])


def test_impossible_rows_are_refused_with_a_store():
    net = SparseEmbedding(10, 2)
    net.initialize()
    mxhybrid.prefetch(net.weight, [99])  # no Trainer yet: nothing to ask
    trainer = gluon.Trainer(net.collect_params(), 'sgd', kvstore='hybrid')
    trainer._init_kvstore()
    trainer._init_params()
    with pytest.raises(mxhybrid.InputError, match='prefetch'):
        mxhybrid.prefetch(net.weight, [99])


def test_keys_of_dynamic_tables_are_checked():
    items, users = mxhybrid.nn.Embedding(1 << 40, 2), mxhybrid.nn.HashEmbedding(2)
    for table in (items, users):
        table.initialize()
    mxhybrid.prefetch(users.weight, [2 ** 62, -2 ** 62, 2 ** 62])
    mxhybrid.prefetch(items.weight, mx.nd.array([[1, 5]], dtype='int64'), after_step=True)
    for ids, message in (([1 << 40], 'is out of range'), ([0.5], 'not a whole number'), ([-1], 'is negative')):
        with pytest.raises(mxhybrid.InputError, match=message):
            mxhybrid.prefetch(items.weight, ids)


def test_rows_of_dynamic_tables_are_requested_sorted_and_once():
    class Table:
        def prefetch(self, keys, priority=0, after_push=False):
            requests.append((keys.tolist(), after_push))
    requests, table = [], mxhybrid.nn.HashEmbedding(2)
    table.weight._table = Table()
    mxhybrid.prefetch(table.weight, np.array([[7, -3], [7, 2 ** 60]]), after_step=True)
    mxhybrid.prefetch(table.weight, [])
    assert requests == [([-3, 7, 2 ** 60], True), ([], False)]


@pytest.mark.parametrize('count', [0, 1, 5])
def test_batches_are_announced_early_and_come_unchanged(count):
    seen = []

    def wanted(batch):
        seen.append(('announced', batch))
        return {}
    for batch in mxhybrid.prefetching(iter(range(count)), wanted):
        seen.append(('given', batch))
    assert [batch for kind, batch in seen if kind == 'given'] == list(range(count))
    assert [batch for kind, batch in seen if kind == 'announced'] == list(range(1, count))
    assert all(seen.index(('announced', batch)) < seen.index(('given', batch)) - 1 for batch in range(1, count))


def test_training_with_prefetching_changes_nothing_in_one_process():
    def train(ahead):
        mx.random.seed(3)
        net = SparseEmbedding(20, 2)
        net.initialize(mx.init.Uniform(1))
        trainer = gluon.Trainer(net.collect_params(), 'adagrad', kvstore='hybrid')
        batches = [mx.nd.array(np.random.RandomState(seed).randint(0, 20, 6)) for seed in range(5)]
        for ids in mxhybrid.prefetching(batches, lambda ids: {net.weight: ids}) if ahead else batches:
            step(trainer, lambda ids=ids: (net(ids) ** 2).sum())
        return net.weight.row_sparse_data(mx.nd.arange(20)).asnumpy()
    np.testing.assert_array_equal(train(True), train(False))
