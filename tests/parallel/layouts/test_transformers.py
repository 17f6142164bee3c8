"""Transformers whose layers are split over heads, channels, words and times: equal to one process."""
import numpy as np
import pytest

from mxhybrid.parallel.plans.megatron import megatron
from mxhybrid.parallel.plans.strategies import grid, layers

from ...helpers.split_networks import Ranks, run_whole
from ...helpers.transformers import NAMES, network

#: Plans by the number of ranks.
PLANS = {2: [megatron(2), megatron(2, sequence=True)],
         4: [megatron(4), megatron(2, 2), megatron(2, 2, True), megatron(4, sequence=True), grid(2, sequence=2),
             grid(1, 2, sequence=2), layers({'*': {'heads': 2, 'samples': 2}})]}


@pytest.fixture(scope='module')
def rank_groups():
    groups = {count: Ranks(count) for count in PLANS}
    yield groups
    for ranks in groups.values():
        ranks.close()


@pytest.mark.parametrize('name', NAMES)
def test_a_transformer_is_that_of_one_process(rank_groups, name):
    given = network(name)
    whole, whole_gradients = run_whole(given.symbol, given.data, given.weights)
    tolerance = 1e-10 if given.weights[min(given.weights)].dtype == np.float64 else 1e-4
    for count, choices in PLANS.items():
        for plan in choices[:-1] if name == 'gated' else choices:  # which has no heads
            graph, dimensions = given.graph()
            splits = plan.resolve(graph, dimensions, count).splits
            outputs, gradients, _ = rank_groups[count].run(given.symbol, given.data, given.weights, splits,
                                                           axes=given.axes)
            for output, expected in zip(outputs, whole):
                np.testing.assert_allclose(output.reshape(expected.shape), expected, rtol=tolerance, atol=tolerance,
                                           err_msg=plan.name)
            for weight, expected in whole_gradients.items():
                np.testing.assert_allclose(gradients[weight], expected, rtol=10 * tolerance, atol=10 * tolerance,
                                           err_msg='%s %s' % (weight, plan.name))
