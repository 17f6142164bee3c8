"""Prefetching outside of jobs: bad input is refused, batches are not changed, and inputs of embeddings are learned."""
import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.contrib.nn import SparseEmbedding

import mxhybrid
from mxhybrid.kvstore import embedding_inputs
from mxhybrid.kvstore.embedding_inputs import LESSON_BATCHES, EmbeddingInputs

from ...helpers.gluon_nets import step


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


# ------------------------------------------------------------------------------------------ inputs of embeddings


class Net(gluon.Block):
    """Two embeddings and one that has dense gradients."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.users = nn.Embedding(20, 2, sparse_grad=True)
            self.inner = nn.HybridSequential()
            self.inner.add(nn.Embedding(30, 2, sparse_grad=True))
            self.dense = nn.Embedding(20, 2)
        self.initialize()


def batch(seed, form=tuple, numbers=np.array):
    """Users, a label and items."""
    random = np.random.RandomState(seed)
    users, label, items = random.randint(0, 20, 6), random.rand(6), random.randint(0, 30, (6, 2))
    return form((numbers(users), numbers(label), numbers(items)))


def lessons(net, batches, work):
    """Return the inputs that are learned from batches, with which `work` computes."""
    inputs = EmbeddingInputs(net)
    for one in batches:
        work(one)
        inputs.learn(one)
    inputs.close()
    return inputs


def as_ids(row_ids):
    return {param.name: ids.tolist() for param, ids in row_ids.items()}


def unique(array):
    return np.unique(array if isinstance(array, np.ndarray) else array.asnumpy()).astype(int).tolist()


@pytest.mark.parametrize('numbers', [np.array, mx.nd.array])
@pytest.mark.parametrize('form, arrays_of', [
    (tuple, lambda batch: (batch[0], batch[2])), (list, lambda batch: (batch[0], batch[2])),
    (lambda parts: dict(zip(('u', 'l', 'i'), parts)), lambda batch: (batch['u'], batch['i'])),
    (lambda parts: (parts[0], {'rest': list(parts[1:])}), lambda batch: (batch[0], batch[1]['rest'][1]))],
    ids=['tuple', 'list', 'dict', 'nested'])
def test_arrays_are_found_wherever_they_are(form, arrays_of, numbers):
    net = Net()

    def work(batch):
        users, items = (mx.nd.array(array) if isinstance(array, np.ndarray) else array for array in arrays_of(batch))
        net.users(users)
        for part in gluon.utils.split_data(items.T, 2, batch_axis=1):  # as loops do for several devices
            net.inner[0](part)

    inputs = lessons(net, [batch(seed, form, numbers) for seed in range(LESSON_BATCHES)], work)
    following = batch(9, form, numbers)
    users, items = arrays_of(following)
    assert as_ids(inputs.row_ids_in(following)) == {net.users.weight.name: unique(users),
                                               net.inner[0].weight.name: unique(items)}


def test_a_fit_by_chance_does_not_outlast_the_lesson():
    net = Net()
    batches = [(mx.nd.array([1, 2]), mx.nd.array([2, 1])), (mx.nd.array([5, 5]), mx.nd.array([3, 4]))]
    inputs = lessons(net, batches, lambda one: net.users(one[1] * 1))
    assert as_ids(inputs.row_ids_in((mx.nd.array([7]), mx.nd.array([8])))) == {net.users.weight.name: [8]}


def test_inputs_that_cannot_be_found_are_reported_once(monkeypatch):
    net, said = Net(), []
    monkeypatch.setattr(embedding_inputs.logger, 'info', lambda text, *values: said.append(text % values))
    for _ in range(2):
        inputs = lessons(net, [batch(seed) for seed in range(LESSON_BATCHES)],
                        lambda one: net.users(mx.nd.array((one[0] + 1) % 20)))
        assert inputs.row_ids_in(batch(9)) == {}
    assert len(said) == 2 and net.users.weight.name in said[0] and net.inner[0].weight.name in said[1]


def test_impossible_rows_and_batches_are_not_asked_for():
    net = Net()
    inputs = lessons(net, [batch(seed, numbers=mx.nd.array) for seed in range(LESSON_BATCHES)],
                    lambda one: net.users(one[0]))
    assert as_ids(inputs.row_ids_in((mx.nd.array([3, 99, -1]),))) == {net.users.weight.name: [3]}
    for other in ((), None, (mx.nd.array([99]),), [[mx.nd.array([1])]]):
        assert inputs.row_ids_in(other) == {}


def test_a_net_without_sparse_embeddings_is_refused():
    with pytest.raises(mxhybrid.InputError, match='Dense has no SparseEmbedding'):
        next(mxhybrid.prefetching([1, 2], nn.Dense(2)))


def test_inputs_of_dynamic_tables_are_learned():
    items, users = mxhybrid.nn.Embedding(1 << 40, 2), mxhybrid.nn.HashEmbedding(2)
    net = mxhybrid.nn.EmbeddingCollection({'items': items, 'users': users})
    net.initialize()

    def make_batch(seed):
        random = np.random.RandomState(seed)
        return {'label': random.rand(4), 'items': mx.nd.array(random.randint(0, 1 << 35, (4, 2)), dtype='int64'),
                'users': random.randint(-2 ** 62, 2 ** 62, 8)}
    inputs = lessons(net, [make_batch(seed) for seed in range(LESSON_BATCHES)], lambda arrays: net(
        {'items': arrays['items'], 'users': (arrays['users'], np.array([0, 3]), 'mean')}))
    following = make_batch(9)
    following['items'][0, 0] = -1  # an id without a row, which is not requested
    row_ids = inputs.row_ids_in(following)
    assert as_ids(row_ids) == {items.weight.name: unique(following['items'])[1:],
                               users.weight.name: unique(following['users'])}
    for param in (items.weight, users.weight):
        assert param.observer is None


@pytest.mark.parametrize('count', [0, 1, 2, 5])
def test_batches_come_unchanged_and_the_net_keeps_no_hooks(count):
    net, given = SparseEmbedding(20, 2), []
    batches = [batch(seed, numbers=mx.nd.array) for seed in range(count)]
    for one in mxhybrid.prefetching(iter(batches), net):
        given.append(one)
    assert [a is b for a, b in zip(given, batches)] == [True] * count == [True] * len(given)
    assert not net._forward_pre_hooks
    for _ in mxhybrid.prefetching(iter(batches), net):
        break
    assert not net._forward_pre_hooks
