"""What a search asks of profiles."""
import pytest
from mxnet.gluon import nn

from mxhybrid.base.errors import InputError
from mxhybrid.parallel.composed import COMPOSED
from mxhybrid.planner.part_keys import PartKeys
from mxhybrid.planner.planning import Planner, search
from mxhybrid.planner.prediction import Prediction
from mxhybrid.planner.prediction_table import prediction_table
from mxhybrid.planner.step_model import StepModel
from tests.helpers.planned_networks import BATCH, Times, cluster, network, planner

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
        found = again.search(seconds=None, proposals=100, seed=seed)
        assert found.prediction.seconds > 0
        # Nor does who looks at what it has found.
        table = prediction_table(again, again.splits(found.plan), found.prediction)
        assert table.count('\n') > len(again.graph.computing) and found.prediction.critical_path()
        assert profiles.measured == timed
    # A plan that is asked for by itself is timed as it is.
    assert again.predict(first.plan).seconds == first.prediction.seconds


@pytest.mark.parametrize('wrong, words', [
    ({'seconds': float('inf')}, 'seconds=inf: give a number of at least 0 and at most 1.79769e+308, or None'),
    ({'seconds': float('nan')}, 'seconds=nan'), ({'seconds': '5'}, "seconds='5'"), ({'seconds': -1}, 'seconds=-1'),
    ({'proposals': 2.5}, 'proposals=2.5: give a whole number of at least 0, or None'), ({'stale': 0}, 'stale=0'),
    ({'seed': None}, 'seed=None: give a whole number of at least 0 and at most'), ({'seed': -1}, 'seed=-1'),
    ({'memory_bytes': 'x'}, "memory_bytes='x'"), ({'memory_bytes': float('nan')}, 'memory_bytes=nan'),
    ({'start': 5}, 'start=5: give a plan'), ({'seconds': None}, 'never ends')], ids=str)
def test_searches_are_refused_that_cannot_be(wrong, words):
    with pytest.raises(InputError) as raised:
        planner(cluster(2)).search(**dict({'seconds': 0.1}, **wrong))
    assert words in str(raised.value)


def test_what_is_no_cluster_and_no_count_is_refused():
    with pytest.raises(InputError, match='cluster=5: give the name of a file, or a Cluster'):
        search(network(), (BATCH, 3, 8, 8), 5)
    with pytest.raises(InputError, match='states=-1: give a whole number of at least 0'):
        planner(cluster(2), states=-1)


def test_operators_that_are_alike_are_asked_for_once_and_predicted_the_same():
    net = nn.HybridSequential(prefix='net_')
    with net.name_scope():
        net.add(*[nn.Dense(16, in_units=16) for _ in range(4)])
    net.initialize()
    made = Planner(net, (BATCH, 16), cluster(4, rate=1e6), Times())
    asked, seconds = {}, {}
    for name, alike in (('each', None), ('alike', PartKeys(made.graph, COMPOSED[True]).alike)):
        asked[name] = []

        def part_time(one, place, part, name=name):
            asked[name].append((one.number, place))
            return Times().part(made.graph, one, place)
        model = StepModel(made.model.step_graph, made.model.machine, part_time, alike=alike)
        seconds[name] = [Prediction(model, made.splits(plan)).seconds for plan in made.starts().values()]
    assert seconds['alike'] == seconds['each']
    # Through the first layer no gradient goes back.
    assert len({one for one, _ in asked['each']}) == 4 and len({one for one, _ in asked['alike']}) == 2
