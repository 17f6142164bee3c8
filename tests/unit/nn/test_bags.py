"""Bags, compared with an explicit computation."""
import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from mxnet import gluon

import mxhybrid

from ...helpers.gluon_nets import backward, initialised, trainer_of

ROWS, WIDTH = 20, 3


def new_table(seed=0):
    mx.random.seed(seed)
    return initialised(mxhybrid.nn.Embedding(ROWS, WIDTH, 'float64', mx.init.Normal(1), prefix='items_'))


def explicit(rows, weights, combine):
    """Return the combination of the rows of one bag, and the factor of each row."""
    total = weights.sum() if combine == 'mean' else np.sqrt((weights ** 2).sum()) if combine == 'sqrtn' else 1.0
    factors = weights / total if total else np.zeros(len(weights))
    return factors @ rows if len(rows) else np.zeros(WIDTH), factors


@settings(deadline=None, max_examples=60)
@given(bags=st.lists(st.lists(st.integers(0, ROWS - 1), max_size=5), min_size=1, max_size=5),
       combine=st.sampled_from(['sum', 'mean', 'sqrtn']), weighted=st.booleans(), form=st.sampled_from(['np', 'nd']),
       seed=st.integers(0, 100))
def test_values_and_gradients(bags, combine, weighted, form, seed):
    table, random = new_table(), np.random.RandomState(seed)
    ids = np.array([number for bag in bags for number in bag], np.int64)
    offsets = np.cumsum([0] + [len(bag) for bag in bags])[:-1]
    weights = random.uniform(0.5, 2, len(ids)) if weighted else np.ones(len(ids))
    given_ids, given_weights = ids, weights
    if form == 'nd' and len(ids):
        given_ids, given_weights = mx.nd.array(ids, dtype='int64'), mx.nd.array(weights, dtype='float64')
        given_weights.attach_grad()
    coefficients = random.standard_normal((len(bags), WIDTH))
    values = table.rows(np.arange(ROWS)).asnumpy()
    trainer = trainer_of(table)
    result = backward(lambda: table(given_ids, offsets, combine, weights=given_weights if weighted else None),
                      mx.nd.array(coefficients, dtype='float64'))
    assert result.shape == (len(bags), WIDTH)
    gradient, begin = np.zeros((ROWS, WIDTH)), 0
    for number, bag in enumerate(bags):
        expected, factors = explicit(values[bag], weights[begin:begin + len(bag)], combine)
        np.testing.assert_allclose(result[number].asnumpy(), expected, rtol=1e-10, atol=1e-12)
        np.add.at(gradient, bag, np.outer(factors, coefficients[number]))
        begin += len(bag)
    trainer.step(1)
    np.testing.assert_allclose(table.rows(np.arange(ROWS)).asnumpy(), values - gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize('combine', ['sum', 'mean', 'sqrtn'])
def test_gradients_of_weights(combine):
    table, ids = new_table(), np.array([3, 4, 3, 5])
    weights = mx.nd.array([0.5, 1.5, 2.0, -1.0], dtype='float64')

    def loss(weights):
        return (table(ids, [0, 3, 3], combine, weights=weights) ** 2).sum()

    weights.attach_grad()
    backward(lambda: loss(weights))
    for number in range(4):
        step = np.zeros(4)
        step[number] = 1e-6
        difference = (loss(weights.asnumpy() + step) - loss(weights.asnumpy() - step)).asscalar() / 2e-6
        np.testing.assert_allclose(weights.grad[number].asscalar(), difference, rtol=1e-5, atol=1e-7)


def test_bags_are_the_last_dimension_without_padding():
    table = new_table()
    ids = np.array([[[1, 2, 0], [0, 0, 0]], [[3, 0, 3], [4, 5, 6]]])
    values = table.rows(np.arange(ROWS)).asnumpy()
    result = table(ids, combine='mean', padding=0).asnumpy()
    assert result.shape == (2, 2, WIDTH)
    np.testing.assert_allclose(result[0, 0], values[[1, 2]].mean(0))
    np.testing.assert_array_equal(result[0, 1], 0)
    np.testing.assert_allclose(result[1, 0], values[3])
    np.testing.assert_allclose(table(ids, combine='sum').asnumpy()[0, 1], 3 * values[0])
    np.testing.assert_allclose(table(np.where(ids, ids, -1), padding=-1).asnumpy(),
                               table(ids, combine='sum', padding=0).asnumpy())
    weights = np.arange(12.0).reshape(2, 2, 3)
    for given_weights in (weights, mx.nd.array(weights, dtype='float64')):
        np.testing.assert_allclose(table(ids, weights=given_weights, padding=0).asnumpy()[1, 0], 8 * values[3]
                                   + 6 * values[3])


def test_all_bags_empty():
    table = new_table()
    result = backward(lambda: table(np.array([], 'int64'), [0, 0]))
    assert result.shape == (2, WIDTH) and not result.asnumpy().any()
    assert not table(np.zeros((2, 3)), padding=0).asnumpy().any()


@pytest.mark.parametrize('combine', ['sum', 'mean', 'sqrtn'])
@pytest.mark.parametrize('value', [2.0, np.nan])
def test_weights_of_padding_alone_get_zeros(combine, value):
    block = initialised(mxhybrid.nn.HashEmbedding(2), mx.init.One())
    layer = initialised(gluon.nn.Dense(1, in_units=1, use_bias=False), mx.init.Constant(value))
    layer.weight.grad()[:] = 5
    result = backward(lambda: block(np.zeros((2, 3), 'int64'), weights=layer(mx.nd.ones((6, 1))).reshape((2, 3)),
                                    combine=combine, padding=0))
    assert not result.asnumpy().any() and layer.weight.grad().asscalar() == 0


@pytest.mark.parametrize('arguments, message', [
    (([1, 2], [0], 'max'), r"items_weight: combine='max': give one of sum, mean, sqrtn"),
    (([1, 2], None, 'sum'), r'ids of shape \(2,\) have no dimension of bags: give offsets'),
    (([[1, 2]], [0], 'sum'), r'ids of shape \(1, 2\) with offsets: give ids of one dimension'),
    (([1, 2], [1], 'sum'), r'offsets begin with 1'),
    (([1, 2], [0, 2, 1], 'sum'), r'offset 1 follows 2'),
    (([1, 2], [0, 3], 'sum'), r'offset 3 exceeds the number of ids, 2'),
    (([1, 2], [0, 0.5], 'sum'), r'offsets hold 0.5: give integers'),
    (([1, 2], [], 'sum'), r'offsets of shape \(0,\)'),
    (([1, 2], [0], 'sum', [1.0]), r'weights of shape \(1,\) for ids of shape \(2,\)'),
    (([1, 2], [0], 'sum', ['a', 'b']), r'weights of type <U1: give numbers'),
    (([1, 2], [0], 'sum', None, 1.5), r'padding=1.5: give an integer'),
    (([1, 20], [0], 'sum'), r'id 20 is out of range')])
def test_refused(arguments, message):
    with pytest.raises(mxhybrid.InputError, match=message):
        new_table()(*arguments)


def test_keywords():
    table = new_table()
    np.testing.assert_array_equal(table(ids=[[1, 2]], combine='mean').asnumpy(), table([1, 2], [0], 'mean').asnumpy())
    with pytest.raises(mxhybrid.InputError, match="argument 'mode' is not known"):
        table([1], mode='sum')


@pytest.mark.parametrize('arguments, is_direct', [
    (('sum',), True), (('mean',), True), (('sqrtn',), True), (('sum', np.ones(3)), True),
    (('sum', mx.nd.ones(3, dtype='float64')), False)])
def test_compiled_code_combines_bags_unless_their_weights_may_learn(arguments, is_direct):
    assert new_table().lookup(np.array([1, 2, 3]), np.array([0, 2]), *arguments).is_direct(3) is is_direct


@pytest.mark.parametrize('arguments, num_keys, is_direct', [
    (([1, 2, 3],), 3, True), (([[1, 2], [2, 3]],), 3, False), (([1, 2, 3], [0, 2]), 3, True),
    (([1, 1, 1], [0, 1]), 1, False)])
def test_a_gpu_gets_the_smaller_of_result_and_rows(arguments, num_keys, is_direct):
    lookup = new_table().lookup(*arguments)
    assert lookup.is_direct(num_keys)
    assert lookup._replace(context=mx.gpu(0)).is_direct(num_keys) is is_direct
