"""The rule that chooses between servers and allreduce."""
import pytest

from mxhybrid.routes.choice import MARGIN, NEAR_DENSE_MARGIN, weigh
from mxhybrid.routes.costs import Estimate


@pytest.mark.parametrize('union, ratio, route', [
    (0.5, MARGIN - 0.01, 'allreduce'), (0.5, MARGIN + 0.01, 'servers'), (0.95, MARGIN + 0.01, 'allreduce'),
    (0.95, NEAR_DENSE_MARGIN + 0.01, 'servers'), (0.0, 0.0, 'allreduce')])
def test_allreduce_must_be_cheaper_or_tables_near_dense(union, ratio, route):
    predicted = Estimate(1.0, 1.0, 1.0, ratio)
    choice = weigh(predicted, 0.1, union, True)
    assert (choice.route, choice.because, choice.touched, choice.union) == (route, 'measured', 0.1, union)
    refused = weigh(predicted, 0.1, union, False)
    assert (refused.route, refused.because) == ('servers', 'memory' if route == 'allreduce' else 'measured')
