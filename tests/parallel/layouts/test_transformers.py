"""Transformers whose layers are split over heads, channels, words and times: equal to one process."""
import numpy as np
import pytest

from mxhybrid.parallel.plans.megatron import megatron
from mxhybrid.parallel.plans.strategies import by_name, grid

from ...helpers.split_networks import assert_equal_to_whole, run_whole
from ...helpers.transformer_variants import VARIANTS, variant
from ...helpers.transformers import NAMES, network

#: A plan for networks with attention.
HEADS = by_name({'*': {'heads': 2, 'samples': 2}})
#: Plans by the number of ranks.
PLANS = {2: [megatron(2), megatron(2, sequence=True)],
         4: [megatron(4), megatron(2, 2), megatron(2, 2, True), megatron(4, sequence=True), grid(2, sequence=2),
             grid(1, 2, sequence=2), HEADS]}


def compare(ranks_of, case, plans):
    """Compare outputs and gradients by plans, by the number of ranks, with those of the whole network."""
    whole = run_whole(case.symbol, case.data, case.weights)
    tolerance = 1e-10 if case.weights[min(case.weights)].dtype == np.float64 else 1e-5
    for count, choices in plans.items():
        for plan in choices:
            graph, dimensions = case.graph()
            splits = plan.resolve(graph, dimensions, count).splits
            outcome = ranks_of(count).run(case.symbol, case.data, case.weights, splits, axes=case.axes)
            assert_equal_to_whole(outcome, whole, tolerance, True, plan.name)


@pytest.mark.parametrize('name', NAMES)
def test_a_transformer_is_that_of_one_process(ranks_of, name):
    compare(ranks_of, network(name), {count: [plan for plan in plans if name != 'gated' or plan.name != HEADS.name]
                                         for count, plans in PLANS.items()})


@pytest.mark.parametrize('name', ['bert', 'gpt of one projection', 'sockeye'])
def test_a_single_sample_is_computed_by_all(ranks_of, name):
    compare(ranks_of, network(name, 1), {4: [megatron(4), megatron(2, 2), megatron(2, 2, True)]})


@pytest.mark.parametrize('name', sorted(VARIANTS))
def test_few_heads_windows_and_experts_equal_one_process(ranks_of, name):
    plans = {2: [megatron(2)], 4: [megatron(2, 2, True)] + [megatron(4)] * (name != 'swin')}  # which has two heads
    compare(ranks_of, variant(name), plans)
