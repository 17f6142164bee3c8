"""Joint batches drawn from the number of the step: no sample is lost or seen twice on any number of workers."""
import collections
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from mxnet import gluon

from mxhybrid import InputError
from mxhybrid.elastic import Samples

LAST_BATCHES = ['keep', 'rollover']


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.integers(1, 40), st.integers(0, 2 ** 63 - 1), st.sampled_from(LAST_BATCHES), st.data())
def test_every_epoch_has_each_sample_once(length, batch, seed, last_batch, data):
    samples, epochs, seen = Samples(length, batch, seed, last_batch), 3, []
    for step in range(samples.steps(epochs)):
        joint = samples.joint(step)
        assert len(joint) == samples.size(step) <= batch
        workers = data.draw(st.integers(1, len(joint)))  # it changes between steps
        shares = [samples.share(step, rank, workers) for rank in range(workers)]
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        np.testing.assert_array_equal(np.concatenate(shares), joint)
        seen += joint.tolist()
    for epoch in range(epochs):
        assert sorted(seen[epoch * length:(epoch + 1) * length]) == list(range(length))
    assert last_batch == 'rollover' or len(seen) == epochs * length


@pytest.mark.parametrize('length, sizes', [(8, [4, 4]), (9, [4, 3, 2]), (11, [4, 4, 3]), (13, [4, 4, 3, 2]), (3, [3])])
def test_last_two_batches_share_the_remainder(length, sizes):
    samples = Samples(length, batch=4)
    assert [samples.size(step) for step in range(2 * len(sizes))] == 2 * sizes
    assert samples.steps(1) == len(sizes)


def test_blocks_fit_together():
    length = (1 << 14) + 7
    samples = Samples(length, batch=1000, seed=5)
    joint = np.concatenate([samples.joint(step) for step in range(samples.steps(1))])
    np.testing.assert_array_equal(np.sort(joint), np.arange(length))


def test_order_is_the_same_in_every_release():
    assert Samples(10, 10, seed=7).joint(0).tolist() == [9, 3, 0, 7, 6, 4, 2, 5, 1, 8]
    assert Samples(10 ** 12, 3, seed=7).joint(5).tolist() == [105630677893, 498938847946, 823685858553]


def test_orders_are_equally_frequent():
    """A chi-squared test: all 24 orders of four samples, over seeds and epochs."""
    draws = [tuple(Samples(4, 4, seed).joint(epoch)) for seed in range(120) for epoch in range(20)]
    counts = collections.Counter(draws)
    expected = len(draws) / math.factorial(4)
    assert len(counts) == 24
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 49.7  # 23 degrees of freedom, 0.001


def test_places_of_a_sample_are_equally_frequent():
    length = 1000
    places = [np.flatnonzero(Samples(length, length, seed).joint(0) == 321)[0] * 10 // length for seed in range(1000)]
    counts = np.bincount(places, minlength=10)
    assert ((counts - 100.0) ** 2 / 100).sum() < 27.9  # 9 degrees of freedom, 0.001


def test_loader_takes_the_shares():
    samples = Samples(23, batch=6, seed=2)
    dataset = gluon.data.ArrayDataset(np.arange(23))
    batches = samples.batches(1, samples.steps(2), rank=1, workers=2)
    loader = gluon.data.DataLoader(dataset, batch_sampler=batches)
    loaded = [batch.asnumpy().tolist() for batch in loader]
    assert len(loader) == len(loaded) == 7
    assert loaded == [samples.share(step, 1, 2).tolist() for step in range(1, 8)]


def test_process_without_a_launcher_takes_whole_joint_batches():
    samples = Samples(7, batch=4)
    assert list(samples.batches(0, 2)) == [samples.joint(0).tolist(), samples.joint(1).tolist()]


@pytest.mark.parametrize('call, message', [
    (lambda: Samples(0, 2), 'length=0: give an integer from 1'),
    (lambda: Samples(2, 2.5), 'batch=2.5'),
    (lambda: Samples(2, True), 'batch=True'),
    (lambda: Samples(2, 2, -1), 'seed=-1'),
    (lambda: Samples(2, 2, last_batch='discard'), "last_batch='discard': give 'keep' or 'rollover'"),
    (lambda: Samples(2, 2).joint(-1), 'step=-1'),
    (lambda: Samples(2, 2).share(0, 2, 2), 'rank=2: give an integer from 0 to 1'),
    (lambda: Samples(2, 2).batches(3, 2, 0, 1), 'last=2: give an integer from 3'),
    (lambda: Samples(9, 4).batches(0, 4, 0, 3), 'joint batch of step 2 has 2 samples for 3 workers .*at least 6')])
def test_wrong_input_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
