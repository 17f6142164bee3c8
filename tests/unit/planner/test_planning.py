"""What a search asks of profiles."""
import pytest

from mxhybrid.planner.planning import Planner
from tests.helpers.planned_networks import BATCH, Times, cluster, network

pytestmark = pytest.mark.any_python


class Counted(Times):
    """Knows what was measured, and counts it."""

    def __init__(self):
        self.known, self.measured = set(), 0

    def part(self, graph, one, place, measure=True, **_):
        self.measured += self._is_new(one, place) if measure else 0
        return super().part(graph, one, place)

    def measure(self, graph, wanted, **_):
        new = sum(self._is_new(one, place) for one, place in wanted)
        self.measured += new
        return new

    def _is_new(self, one, place):
        new = (one.number, place) not in self.known
        self.known.add((one.number, place))
        return new


def test_the_next_search_measures_nothing():
    profiles = Counted()
    net, on = network(), cluster(4, rate=1e6)
    first = Planner(net, (BATCH, 3, 8, 8), on, profiles).search(seconds=None, proposals=100, seed=1)
    timed = profiles.measured
    assert timed > 0
    for seed in range(2, 6):
        again = Planner(net, (BATCH, 3, 8, 8), on, profiles)
        assert again.search(seconds=None, proposals=100, seed=seed).prediction.seconds > 0
        assert profiles.measured == timed
    # A plan that is asked for by itself is timed as it is.
    assert again.predict(first.plan).seconds == first.prediction.seconds
