"""The soak's models equal MXNet's optimizers, and growth of memory is noticed."""
import mmap
import os

import mxnet as mx
import numpy as np
import pytest
from lab.soak.growth import Sample, judge, sample, slope, table
from lab.soak.model import Adam, Sgd

SHAPE = (50, 4)


@pytest.mark.parametrize('name, options, model', [
    ('sgd', {}, Sgd(SHAPE, 'float64')),
    ('sgd', {'momentum': 0.9}, Sgd(SHAPE, 'float64', 0.9)),
    ('adam', {}, Adam(SHAPE, 'float64'))])
def test_models_are_mxnets_optimizers(name, options, model):
    optimizer = mx.optimizer.create(name, learning_rate=0.25, lazy_update=True, **options)
    weight = mx.nd.sparse.row_sparse_array((np.zeros(SHAPE), np.arange(SHAPE[0])), shape=SHAPE, dtype='float64')
    state = optimizer.create_state(0, weight)
    random = np.random.RandomState(3)
    for count in (7, 50, 1, 0, 20, 33):
        ids = np.sort(random.choice(SHAPE[0], count, replace=False))
        rows = random.randint(-4, 5, (count, SHAPE[1])).astype('float64')
        optimizer.set_learning_rate(2.0 ** -count)
        optimizer.update(0, weight, mx.nd.sparse.row_sparse_array((rows, ids), shape=SHAPE, dtype='float64'), state)
        model.update(ids, rows, 2.0 ** -count)
        np.testing.assert_allclose(weight.tostype('default').asnumpy(), model.weights, 1e-12, 1e-12)


def test_growth_is_seen():
    steady = [Sample(100 + 0.1 * (i % 3), 5, 20, 9) for i in range(40)]
    leaks = {'memory': [each._replace(memory=100 + 0.2 * i) for i, each in enumerate(steady)],
             'shared': [each._replace(shared=5 + 0.2 * i) for i, each in enumerate(steady)],
             'descriptors': [each._replace(descriptors=20 + i // 15) for i, each in enumerate(steady)],
             'threads': [each._replace(threads=9 + (i > 35) + (i > 15)) for i, each in enumerate(steady)]}
    found = judge(dict(leaks, steady=steady), {'memory': 100000, 'steady': 100000})
    assert {row['process']: row['grew'] for row in found} == dict({name: [name] for name in leaks}, steady=[])
    assert table(found).count(' -\n') + table(found).endswith(' -') == 1


def test_slope_of_memory():
    rising = [Sample(300 if number < 10 else 100 + 0.2 * number, 5, 20, 9) for number in range(40)]
    assert slope(rising, 2.0) == pytest.approx(360)  # MB an hour; the first quarter does not count
    assert slope([Sample(100, 5, 20, 9)] * 8, 2.0) == pytest.approx(0, abs=1e-6)
    assert judge({'rising': rising}, interval=2.0)[0]['slope'] == slope(rising, 2.0)


def test_growth_that_requests_explain_is_none():
    samples = {'worker 0': [Sample(100 + 0.2 * i, 5, 20, 9) for i in range(40)]}  # 8 MB, 5 of them between quarters
    assert [row['grew'] for row in judge(samples, {'worker 0': 10 ** 6})] == [[]]
    assert [row['grew'] for row in judge(samples, {'worker 0': 10 ** 5})] == [['memory']]


def test_resources_that_a_process_holds():
    before = sample(os.getpid())
    descriptor = os.memfd_create('mxhybrid')
    os.ftruncate(descriptor, 1 << 20)
    held = mmap.mmap(descriptor, 1 << 20)
    after = sample(os.getpid())
    assert after.shared - before.shared == pytest.approx(1.05, abs=0.01)
    assert after.descriptors == before.descriptors + 2
    held.close()
    os.close(descriptor)
    assert sample(2 ** 22 + 1) is None
