"""Transformers whose layers are split over heads, channels, words and times: equal to one process."""
import numpy as np
import pytest

from mxhybrid.parallel.plans.megatron import megatron
from mxhybrid.parallel.plans.strategies import by_name, grid

from ...helpers.split_networks import Ranks, run_whole
from ...helpers.transformer_variants import VARIANTS, variant
from ...helpers.transformers import NAMES, network

#: A plan for networks with attention.
HEADS = by_name({'*': {'heads': 2, 'samples': 2}})
#: Plans by the number of ranks.
PLANS = {2: [megatron(2), megatron(2, sequence=True)],
         4: [megatron(4), megatron(2, 2), megatron(2, 2, True), megatron(4, sequence=True), grid(2, sequence=2),
             grid(1, 2, sequence=2), HEADS]}


@pytest.fixture(scope='module')
def rank_groups():
    groups = {count: Ranks(count) for count in PLANS}
    yield groups
    for ranks in groups.values():
        ranks.close()


def compare(rank_groups, case, plans):
    """Compare outputs and gradients by plans, by the number of ranks, with those of the whole network."""
    whole, whole_gradients = run_whole(case.symbol, case.data, case.weights)
    tolerance = 1e-10 if case.weights[min(case.weights)].dtype == np.float64 else 1e-5
    for count, choices in plans.items():
        for plan in choices:
            graph, dimensions = case.graph()
            splits = plan.resolve(graph, dimensions, count).splits
            outputs, gradients, _ = rank_groups[count].run(case.symbol, case.data, case.weights, splits,
                                                           axes=case.axes)
            for output, expected in zip(outputs, whole):
                np.testing.assert_allclose(output.reshape(expected.shape), expected, rtol=tolerance, atol=tolerance,
                                           err_msg=plan.name)
            for weight, expected in whole_gradients.items():
                largest = max(1.0, np.abs(expected).max())
                np.testing.assert_allclose(gradients[weight], expected, rtol=10 * tolerance,
                                           atol=10 * tolerance * largest, err_msg='%s %s' % (weight, plan.name))


@pytest.mark.parametrize('name', NAMES)
def test_a_transformer_is_that_of_one_process(rank_groups, name):
    compare(rank_groups, network(name), {count: [plan for plan in plans if name != 'gated' or plan.name != HEADS.name]
                                         for count, plans in PLANS.items()})


@pytest.mark.parametrize('name', ['bert', 'gpt of one projection', 'sockeye'])
def test_a_single_sample_is_computed_by_all(rank_groups, name):
    compare(rank_groups, network(name, 1), {4: [megatron(4), megatron(2, 2), megatron(2, 2, True)]})


@pytest.mark.parametrize('name', sorted(VARIANTS))
def test_few_heads_windows_and_experts_equal_one_process(rank_groups, name):
    plans = {2: [megatron(2)], 4: [megatron(2, 2, True)] + [megatron(4)] * (name != 'swin')}  # which has two heads
    compare(rank_groups, variant(name), plans)
