"""The Transformers of the benchmark: data parallelism computes nothing of them for the joint batch."""
import sys

import mxnet as mx
import numpy as np
import pytest
from lab.launchers import REPOSITORY

from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.strategies import data_parallel
from mxhybrid.parallel.runtime.joint_work import joint_operators, whole_outputs

sys.path[:0] = [str(REPOSITORY / 'scripts')]

from lab.benchmark.layers_training import batch_of  # noqa: E402
from lab.benchmark.plan_cases import PLAN_CASES, shapes_of  # noqa: E402
from lab.benchmark.transformers import Bert, Gpt  # noqa: E402


def bert():
    net, arrays = batch_of('layers_bert', 4)
    return net, arrays


def gpt():
    draw = np.random.RandomState(0)
    return Gpt(2, 16, 2, 30, 8), [draw.randint(0, 30, (4, 8)), draw.randint(0, 30, (4, 8))]


@pytest.mark.parametrize('make', [bert, gpt])
def test_samples_are_split_everywhere(make):
    net, arrays = make()
    net.initialize(mx.init.Xavier())
    network = traced(net, [array.shape for array in arrays])
    splits = data_parallel().resolve(network.graph, network.dimensions, 4).splits
    assert joint_operators(network.graph, network.dimensions, splits, 4) == {}
    assert whole_outputs(network.graph, network.dimensions) == []
    loss = net(*[mx.nd.array(array) for array in arrays])
    assert loss.shape == (4,) and np.isfinite(loss.asnumpy()).all() and loss.asnumpy().std() > 0


def test_a_sample_of_bert_ignores_words_behind_its_end():
    net = Bert(1, 16, 2, 30, 8)
    net.initialize(mx.init.Xavier())
    ids = np.arange(16).reshape(2, 8)
    others = ids.copy()
    others[0, 5:] = 0
    counts, segments, labels = mx.nd.array([5, 8]), mx.nd.zeros((2, 8)), mx.nd.array([0, 1])
    first, second = (net(mx.nd.array(words), segments, counts, labels).asnumpy() for words in (ids, others))
    np.testing.assert_allclose(first, second, rtol=1e-6)


@pytest.mark.parametrize('ranks', [2, 4])
def test_plans_of_the_gpt_fit_it_exactly(ranks):
    case = PLAN_CASES['gpt']
    net = case.make()
    net.initialize()
    network = traced(net, shapes_of(case, ranks))
    for plan in case.plans(ranks).values():
        resolved = plan.resolve(network.graph, network.dimensions, ranks)
        assert len(resolved.splits) == len(network.graph.computing) and not resolved.notes
