"""The Transformers of the benchmark: nothing is computed for the joint batch, and the memory of a split one."""
import mmap

import mxnet as mx
import numpy as np
import pytest
from lab import reports, split_memory
from lab.benchmark.layers_training import batch_of
from lab.benchmark.plan_cases import PLAN_CASES, shapes_of
from lab.benchmark.transformers import Bert, Gpt

from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.strategies import data_parallel
from mxhybrid.parallel.runtime.joint_work import joint_operators, whole_outputs


def bert():
    return batch_of('layers_bert', 4)


def gpt():
    return Gpt(2, 16, 2, 30, 8), np.random.RandomState(0).randint(0, 30, (2, 4, 8))


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


def test_one_process_trains_and_reports(tmp_path, monkeypatch):
    monkeypatch.setenv(reports.DIRECTORY, str(tmp_path))
    sizes = {'words': 20, 'layers': 1, 'units': 8, 'heads': 2, 'times': 4, 'batch': 2}
    monkeypatch.setattr(split_memory, 'SIZES', dict(split_memory.SIZES, **sizes))
    split_memory.work({})
    results = reports.read_reports(tmp_path)
    assert results[0]['weights'] == results[0]['state'] == 1
    assert results[0]['losses'][1] < results[0]['losses'][0]
    assert 'one process' in split_memory._line('one process', results)


def test_the_peak_counts_from_the_last_restart():
    peak = split_memory.Peak()
    with mmap.mmap(-1, 1 << 26, flags=mmap.MAP_PRIVATE) as grown:  # an array may take memory of freed ones
        for _ in range(64):
            grown.write(b'1' * (1 << 20))
        assert peak.size_bytes > 1 << 25
    peak.restart()
    assert peak.size_bytes < 1 << 25


def test_the_line_has_the_worker_that_holds_most():
    worker = {'weights': 0.25, 'state': 0.25, 'made': 1000000, 'trains': 2000000, 'losses': [4.0, 2.0]}
    line = split_memory._line('a plan', {0: worker, 1: dict(worker, weights=0.26, trains=3000000)})
    assert 'weights 0.260, state 0.250, while it is made 1 MB, while it trains 3 MB, losses 1.00000 0.50000' in line
