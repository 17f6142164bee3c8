"""What sums dense weights, as one more choice of a plan: by the lane or by Horovod."""
import json

import pytest
from hypothesis import given, settings, strategies as st

from mxhybrid.base.errors import InputError
from mxhybrid.parallel.plans.plan_json import from_json
from mxhybrid.parallel.plans.strategies import data_parallel
from mxhybrid.planner.cluster.cluster_spec import BY_HOROVOD, TransferCost, cluster_from_json
from mxhybrid.planner.reports.prediction_table import store_notes
from mxhybrid.planner.search.mcmc import SearchLimits, run_chains
from mxhybrid.planner.search.plan_evaluator import PlanEvaluator, random_decisions
from mxhybrid.planner.search.search_space import SearchSpace
from mxhybrid.planner.simulator.native_backend import native_backend
from mxhybrid.planner.simulator.simulation import Simulation
from mxhybrid.planner.task_graph.step_tasks import StepTasks
from tests.helpers.planned_networks import check_proposals, cluster, planner, recommender
from tests.oracles.event_loop import PYTHON_BACKEND
from tests.oracles.exhaustive_search import try_all

RANKS = 4
#: Of Horovod's sums: less of bytes than the lane's, more of parameters.
HOROVOD = TransferCost(2e-4, 1e-4, 1e-10, 3e-4)
BY_ALLREDUCE = {'embedding%d_weight' % at: {'route': 'allreduce'} for at in (0, 1)}


def planned_on(there):
    return planner(there, recommender(), (8, 20))


def of_data(dense=None):
    return from_json(dict({'plan': 'data_parallel', 'tables': BY_ALLREDUCE}, **({'dense': dense} if dense else {})))


@pytest.fixture(scope='module')
def planned():
    return planned_on(cluster(2, 2, horovod=HOROVOD))


@pytest.fixture(scope='module')
def choices(planned):
    return SearchSpace(planned.model.dataflow, RANKS, 2, planned.cluster.sums)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_changes_are_what_is_made_anew(planned, choices, data):
    problem = PlanEvaluator(planned.model, choices)
    draws = [data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=problem.operators,
                                max_size=problem.operators)) for _ in range(4)]
    check_proposals(planned, problem, [random_decisions(choices, draw) for draw in draws], data.draw(st.integers(1, 2)))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_proposals_are_what_is_begun_anew(planned, choices, data):
    problem = PlanEvaluator(planned.model, choices)
    now = list(problem.decisions(planned.splits(data_parallel())))
    assert now[-1] == 'lane' and problem.neighbours(problem.operators - 1) == []
    begun = problem.begin(tuple(now))
    for _ in range(data.draw(st.integers(1, 4))):
        changes = {at: data.draw(st.sampled_from(list(problem.candidates(at)))) for at in data.draw(
            st.sets(st.integers(0, problem.operators - 2), max_size=2))}
        changes[problem.operators - 1] = data.draw(st.sampled_from(['lane', 'horovod']))
        proposed = [changes.get(at, one) for at, one in enumerate(now)]
        other = PlanEvaluator(planned.model, choices)
        assert problem.propose(changes) == other.begin(tuple(proposed))
        if data.draw(st.booleans()):
            problem.accept()
            now = proposed
        else:
            problem.reject()
        assert problem.propose({}) == PlanEvaluator(planned.model, choices).begin(tuple(now))
        problem.reject()
    back = problem.decisions(planned.splits(data_parallel()))
    assert problem.begin(back) == begun


def test_both_languages_have_the_same_bits(planned):
    splits, resources = planned.splits(data_parallel()), planned.model.machine.resources
    found = []
    for dense in (None, 'lane', 'horovod'):
        blocks = list(StepTasks(planned.model, splits, 2, planned.tables(of_data()), dense).blocks.values())
        seconds, python_seconds = (Simulation(resources, backend=backend).run(blocks)
                                   for backend in (native_backend(), PYTHON_BACKEND))
        assert seconds == python_seconds
        found.append(seconds)
    assert found[0] == found[1] != found[2]


def test_each_has_its_costs(planned):
    lane, horovod = (planned.predict(of_data(dense)).seconds for dense in ('lane', 'horovod'))
    assert planned.predict(of_data()).seconds == lane != horovod
    # As if the others were all there is, but for what is no sum; items of sums are parameters then.
    value = planned.cluster.as_json()
    for kind, other in BY_HOROVOD.items():
        value['costs'][kind] = dict(value['costs'].pop(other))
    dense = [name for name in planned.model.dataflow.trained if name not in planned.model.dataflow.tables]
    value['costs']['sum']['per_item_s'] *= len(dense) / RANKS
    only = planned_on(cluster_from_json(value))
    # The rows that are updated in the end are so as before.
    assert only.predict(of_data()).seconds == pytest.approx(horovod, rel=0.02)
    assert abs(only.predict(of_data()).seconds - lane) > abs(only.predict(of_data()).seconds - horovod)
    assert only.predict(of_data('horovod')).seconds == only.predict(of_data('lane')).seconds
    assert 'has the cost of only one kind of sum, which is used for horovod' in ' '.join(
        store_notes(only.graph, only.cluster, of_data('horovod')))
    assert store_notes(planned.graph, planned.cluster, of_data('horovod'))[-1] == 'dense weights: summed by horovod'


@pytest.mark.parametrize('horovod, expected', [(TransferCost(1e-6, 1e-7, 1e-11), 'horovod'),
                                               (TransferCost(1e-2, 1e-3, 1e-8), 'lane')])
def test_a_search_takes_what_is_faster(horovod, expected):
    planned = planner(cluster(2, 1, horovod=horovod))
    found = planned.search(seconds=None, proposals=400, seed=1)
    assert found.plan.store.dense == expected
    assert planned.predict(found.plan).seconds == found.prediction.seconds
    assert from_json(json.loads(json.dumps(found.plan.as_json()))).store.dense == expected
    # The other one, to begin with: it is left.
    other = {'lane': 'horovod', 'horovod': 'lane'}[expected]
    start = planned.explicit(planned.splits(found.plan), {}, other)
    again = planned.search(seconds=None, proposals=400, seed=2, start=start)
    assert again.plan.store.dense == expected and again.prediction.seconds <= found.prediction.seconds


def test_what_cannot_be_chosen_any_more_is_kept():
    there = cluster(2, 1, horovod=TransferCost(1e-6, 1e-7, 1e-11))
    free, kept = planner(there), planner(there, sums='lane')
    found = kept.search(seconds=None, proposals=200, seed=1)
    assert found.plan.store.dense == 'lane'
    assert found.prediction.seconds == free.predict(found.plan).seconds
    assert kept.predict(from_json({'plan': 'data_parallel', 'dense': 'horovod'})).seconds == free.predict(
        data_parallel()).seconds > free.predict(from_json({'plan': 'data_parallel', 'dense': 'horovod'})).seconds


def test_the_walk_finds_the_best():
    planned = planned_on(cluster(2, 1, horovod=HOROVOD, rate=1e6))
    choices = SearchSpace(planned.model.dataflow, 2, 1, planned.cluster.sums)
    problem = PlanEvaluator(planned.model, choices)
    start = problem.decisions(planned.splits(data_parallel()))
    everything = try_all(problem)
    found = run_chains(problem, {'data parallel': start}, SearchLimits(proposals=1500), seed=1)
    assert found.seconds == everything.seconds


def test_old_files_leave_no_choice():
    there = cluster(2, 1)
    assert there.sums == () and cluster(2, 1, horovod=HOROVOD).sums == ('lane', 'horovod')
    found = planner(there).search(seconds=None, proposals=50)
    assert found.plan.store.dense is None
    start = planner(there).explicit(planner(there).splits(data_parallel()), {}, 'horovod')
    assert planner(there).search(seconds=None, proposals=50, start=start).plan.store.dense == 'horovod'


def test_a_file_with_some_of_them_is_refused():
    value = cluster(2, 1, horovod=HOROVOD).as_json()
    del value['costs']['horovod_step']
    with pytest.raises(InputError, match='there is horovod_sum: give all of horovod_row_sum, horovod_step, '
                                         'horovod_sum, or none'):
        cluster_from_json(value)
