"""The comparison of formulas with measurements in the benchmark of split layers."""
import sys

import pytest
from lab.launchers import REPOSITORY

from ...helpers.planned_networks import cluster

sys.path[:0] = [str(REPOSITORY / 'scripts')]

from lab.benchmark import layers  # noqa: E402
from lab.benchmark.layers_formula import communication  # noqa: E402


def test_formulas_of_the_network_that_is_trained():
    costs = communication('layers_dense', 16, cluster(hosts=4))
    dense = 4096 * 4097 + 1000 * 4097
    convolutions = 32 * (3 * 25 + 1) + 64 * (32 * 9 + 1)

    def words(count):
        return 0.75 * 4 * count / costs['bytes_per_s']
    # Each layer is an allreduce: two passes of two messages among four.
    assert costs['data'] == pytest.approx(4 * 4 * costs['alpha_s'] + 2 * words(dense + convolutions))
    # Forward an allgather of outputs, backward an allreduce of inputs; outputs of convolutions go to all ranks.
    moved = 16 * (4096 + 1000 + 2 * (4096 + 4096) + 4096)
    assert costs['split'] == pytest.approx((2 * 4 + 2 * (2 + 4) + 2) * costs['alpha_s'] + 2 * words(convolutions)
                                           + words(moved))


def test_gains_beside_formulas():
    formula = {'data': 10.0, 'split': 0.2, 'alpha_s': 0.001, 'bytes_per_s': 1e7}
    told = layers.gain_sentence('grid', {'step_s': 12.0, 'cpu_s': 2.0}, {'step_s': 1.5, 'cpu_s': 1.6}, formula, 2)
    assert told.startswith('grid is 8.0 times as fast as data')
    assert told.endswith('a step gains 11.0 times: measured is 73 % of that')  # (10 + 1) / (0.2 + 0.8)
