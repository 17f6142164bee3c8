"""The benchmark's workloads, lower bounds and expected sums."""
import mxnet as mx
import numpy as np
import pytest
from lab.benchmark import bounds, gradients, shapes, workloads
from mxnet.gluon.model_zoo import vision

pytestmark = pytest.mark.both_pythons


# ------------------------------------------------------------------------------------------- workloads

@pytest.mark.parametrize('name, dense, sparse', [
    ('lm1b', 9.4e6, 812.5e6), ('nmt', 94.1e6, 74.9e6), ('resnet50', 25.6e6, 0), ('inception_v3', 23.8e6, 0)])
def test_models_have_the_published_sizes(name, dense, sparse):
    workload = workloads.WORKLOADS[name]
    assert workload.dense_bytes / 4 == pytest.approx(dense, abs=0.05e6)
    assert workload.table_bytes / 4 == pytest.approx(sparse, abs=0.05e6)


@pytest.mark.parametrize('name, size, layers', [('resnet50_v1', 224, shapes.resnet50),
                                                ('inception_v3', 299, shapes.inception_v3)])
def test_image_models_have_the_layers_of_the_model_zoo(name, size, layers):
    net = getattr(vision, name)()
    net.initialize()
    net(mx.nd.zeros((1, 3, size, size)))
    params = [param for param in net.collect_params().values() if param.grad_req != 'null'
              # Gluon's first ResNet keeps some biases that a batch normalisation follows; the paper has none.
              and not (name == 'resnet50_v1' and 'conv' in param.name and param.name.endswith('bias'))]
    assert sorted(param.shape for param in params) == sorted(layers())


def test_lm1b_draws_what_it_says():
    workload = workloads.WORKLOADS['lm1b']
    drawn = workload.draw(1, 3)
    assert [len(drawn[one.name]) for one in workload.tables] == [2560, 8192 + 2560]
    candidates, targets = np.split(drawn['softmax'], [8192])
    assert len(np.unique(candidates)) == 8192 and len(np.unique(targets)) < 2560
    # Log-uniform: half of the ids below sqrt(rows) if they were not distinct; those below 32 are nearly all there.
    assert np.isin(np.arange(32), candidates).all()
    assert candidates.max() > 600000
    for ids in drawn.values():
        assert ids.dtype == np.int64 and ids.min() == 0 and ids.max() < 793470


def test_draws_depend_on_batch_and_worker_alone():
    workload = workloads.WORKLOADS['nmt']
    one = workload.draw(0, 1)
    for other, equal in (((0, 1), True), ((1, 1), False), ((0, 2), False)):
        assert np.array_equal(one['source'], workload.draw(*other)['source']) is equal
    assert np.array_equal(one['source'], workload.scaled(0.1).draw(0, 1)['source'])
    assert not np.array_equal(one['source'], one['target'])


def test_draws_of_a_small_table_stay_inside():
    small = workloads.WORKLOADS['lm1b'].shrunk(100000)
    for batch in range(workloads.BATCHES):
        for one in small.tables:
            ids = small.draw(batch, 0)[one.name]
            assert len(ids) == one.zipf + one.candidates and 0 <= ids.min() and ids.max() < one.rows


def test_width_scales_tables_and_dense_parameters():
    scaled = workloads.WORKLOADS['lm1b'].scaled(0.125)
    assert [one.shape for one in scaled.tables] == [(793470, 64)] * 2
    assert scaled.dense_bytes == 4 * 9445376 // 8  # 4.7 MB
    for factor in (0, 1.5, -1):
        with pytest.raises(ValueError, match='--width-scale'):
            workloads.WORKLOADS['lm1b'].scaled(factor)


# ------------------------------------------------------------------------------------------- bounds

def test_bound_of_dense_parameters_is_a_ring():
    workload = workloads.WORKLOADS['resnet50']
    bound = bounds.lower_bound(workload, hosts=4, workers=2, mbit_per_s=1000)
    assert bound.sent == bound.received == pytest.approx(1.5 * workload.dense_bytes)
    assert bound.seconds == pytest.approx(1.5 * workload.dense_bytes * 8 / 1e9)
    assert bound.rows == 0


def test_bound_of_a_table_by_counting():
    workload = workloads.Workload('one', (workloads.Table('t', 50, 3, 20),), (), 'words', 1)
    hosts, workers = 3, 2
    sent = np.zeros((workloads.BATCHES, hosts))
    for batch in range(workloads.BATCHES):
        unions = [set(np.concatenate([workload.draw(batch, host * workers + i)['t'] for i in range(workers)]))
                  for host in range(hosts)]
        for host, union in enumerate(unions):
            others = sum(len(other) for i, other in enumerate(unions) if i != host)
            sent[batch, host] = 12 * (len(union) * 2 / 3 + others / 3)  # pushed away, and pulled by others
    bound = bounds.lower_bound(workload, hosts, workers)
    assert bound.sent == pytest.approx(sent.max(axis=1).mean()) and bound.seconds is None


def test_bound_of_the_published_shape():
    bound = bounds.lower_bound(workloads.WORKLOADS['lm1b'].scaled(0.125), hosts=8, workers=6, mbit_per_s=100)
    assert bound.rows == pytest.approx(38750, rel=0.02)
    assert bound.sent == pytest.approx(25.6e6, rel=0.02)
    assert bound.seconds == pytest.approx(2.05, rel=0.02)


def test_one_host_needs_no_link():
    assert bounds.lower_bound(workloads.WORKLOADS['recsys'], 1, 4).sent == 0


# ------------------------------------------------------------------------------------------- expected sums

@pytest.fixture
def small():
    """A workload small enough to add up in full."""
    return workloads.Workload('small', (workloads.Table('t', 30, 7, 12, 4), workloads.Table('u', 9, 2, 5)),
                              (workloads.Dense('a', (3, 2)), workloads.Dense('b', (5,))), 'words', 1)


def summed(workload, size, times):
    """Every sum, the slow way."""
    totals = {parameter.name: np.zeros(parameter.shape, np.float32) for parameter in workload.tables + workload.dense}
    for batch, count in times.items():
        for rank in range(size):
            drawn = workload.draw(batch, rank)
            for parameter in workload.tables:
                ids = np.unique(drawn[parameter.name])
                totals[parameter.name][ids] += count * gradients.row_pattern(rank, len(ids), parameter.width)
            for index, parameter in enumerate(workload.dense):
                totals[parameter.name] += count * gradients.dense_value(rank, index)
    return totals


@pytest.mark.parametrize('times', [{1: 1}, {0: 3, 1: 2, 3: 1}])
def test_expected_sums_are_those_of_adding_up(small, times):
    size, rank = 9, 2
    totals, expected = summed(small, size, times), gradients.Expected(small, size, times)
    checksums = {one.name: gradients.checksum(totals[one.name][np.unique(small.draw(2, rank)[one.name])])
                 for one in small.tables}
    checksums.update({one.name: gradients.checksum(totals[one.name]) for one in small.dense})
    assert gradients.differences(small, expected, rank, 2, checksums) == []
    for name in checksums:
        for wrong in ((0.0, 0.0), (checksums[name][0], checksums[name][1] * 1.001)):
            texts = gradients.differences(small, expected, rank, 2, dict(checksums, **{name: wrong}))
            assert len(texts) == 1 and texts[0].startswith('%s on worker 2' % name)


@pytest.mark.parametrize('wire_dtype', ['float16', 'int8'])
def test_rounded_sums_may_be_off_by_the_roundoff(small, wire_dtype):
    roundoff = gradients.ROUNDOFF[wire_dtype]
    past, step = gradients.Expected(small, 4, {0: 3, 1: 3}), gradients.Expected(small, 4, {1: 1})
    rounded = [past, step]
    checksums = {array.name: step.of_table(array, np.unique(small.draw(1, 0)[array.name])) for array in small.tables}
    checksums.update({array.name: step.of_dense(array, index) for index, array in enumerate(small.dense)})
    for array in small.dense:
        # The past holds six steps, the step one.
        for share, good in ((6.9, True), (7.1, False), (-6.9, True), (-7.1, False)):
            off = tuple(np.array(checksums[array.name]) * (1 + share * roundoff))
            texts = gradients.differences(small, step, 0, 1, dict(checksums, **{array.name: off}), rounded, roundoff)
            assert (texts == []) == good
            assert gradients.differences(small, step, 0, 1, dict(checksums, **{array.name: off}))
    for name in checksums:
        texts = gradients.differences(small, step, 0, 1, dict(checksums, **{name: (0.0, 0.0)}), rounded, roundoff)
        assert len(texts) == 1
