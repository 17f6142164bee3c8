"""Sums of dense weights as a choice of a plan: by the lane or by Horovod."""
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
from tests.helpers.planned_networks import check_proposals, cluster, make_planner, recommender
from tests.oracles.event_loop import PYTHON_BACKEND
from tests.oracles.exhaustive_search import try_all

RANKS = 4
#: The cost of sums by Horovod: less than the lane for each byte, more for each parameter.
HOROVOD = TransferCost(2e-4, 1e-4, 1e-10, 3e-4)
BY_ALLREDUCE = {'embedding%d_weight' % number: {'route': 'allreduce'} for number in (0, 1)}


def planner_on(there):
    return make_planner(there, recommender(), (8, 20))


def of_data(dense=None):
    return from_json(dict({'plan': 'data_parallel', 'tables': BY_ALLREDUCE}, **({'dense': dense} if dense else {})))


@pytest.fixture(scope='module')
def planner():
    return planner_on(cluster(2, 2, horovod=HOROVOD))


@pytest.fixture(scope='module')
def space(planner):
    return SearchSpace(planner.model.dataflow, RANKS, 2, planner.cluster.sums)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_proposals_give_the_blocks_of_a_new_step(planner, space, data):
    problem = PlanEvaluator(planner.model, space)
    draws = [data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=problem.operators,
                                max_size=problem.operators)) for _ in range(4)]
    check_proposals(planner, problem, [random_decisions(space, draw) for draw in draws], data.draw(st.integers(1, 2)))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_proposal_takes_as_long_as_a_new_beginning(planner, space, data):
    problem = PlanEvaluator(planner.model, space)
    current = list(problem.decisions(planner.splits(data_parallel())))
    assert current[-1] == 'lane' and problem.neighbours(problem.operators - 1) == []
    begun = problem.begin(tuple(current))
    for _ in range(data.draw(st.integers(1, 4))):
        changes = {index: data.draw(st.sampled_from(list(problem.candidates(index)))) for index in data.draw(
            st.sets(st.integers(0, problem.operators - 2), max_size=2))}
        changes[problem.operators - 1] = data.draw(st.sampled_from(['lane', 'horovod']))
        proposed = [changes.get(index, choice) for index, choice in enumerate(current)]
        other = PlanEvaluator(planner.model, space)
        assert problem.propose(changes) == other.begin(tuple(proposed))
        if data.draw(st.booleans()):
            problem.accept()
            current = proposed
        else:
            problem.reject()
        assert problem.propose({}) == PlanEvaluator(planner.model, space).begin(tuple(current))
        problem.reject()
    back = problem.decisions(planner.splits(data_parallel()))
    assert problem.begin(back) == begun


def test_both_languages_have_the_same_bits(planner):
    splits, resources = planner.splits(data_parallel()), planner.model.machine.resources
    times = []
    for dense in (None, 'lane', 'horovod'):
        blocks = list(StepTasks(planner.model, splits, 2, planner.tables(of_data()), dense).blocks.values())
        seconds, python_seconds = (Simulation(resources, backend=backend).run(blocks)
                                   for backend in (native_backend(), PYTHON_BACKEND))
        assert seconds == python_seconds
        times.append(seconds)
    assert times[0] == times[1] != times[2]


def test_each_means_has_costs_of_its_own(planner):
    lane, horovod = (planner.predict(of_data(dense)).seconds for dense in ('lane', 'horovod'))
    assert planner.predict(of_data()).seconds == lane != horovod
    # Make the costs of Horovod the only ones; the items of sums are parameters then.
    value = planner.cluster.as_json()
    for kind, other in BY_HOROVOD.items():
        value['costs'][kind] = dict(value['costs'].pop(other))
    dense = [name for name in planner.model.dataflow.trained if name not in planner.model.dataflow.tables]
    value['costs']['sum']['per_item_s'] *= len(dense) / RANKS
    only = planner_on(cluster_from_json(value))
    # Updates of rows cost the same as before.
    assert only.predict(of_data()).seconds == pytest.approx(horovod, rel=0.02)
    assert abs(only.predict(of_data()).seconds - lane) > abs(only.predict(of_data()).seconds - horovod)
    assert only.predict(of_data('horovod')).seconds == only.predict(of_data('lane')).seconds
    assert 'has the cost of only one kind of sum, which is used for horovod' in ' '.join(
        store_notes(only.graph, only.cluster, of_data('horovod')))
    assert store_notes(planner.graph, planner.cluster, of_data('horovod'))[-1] == 'dense weights: summed by horovod'


@pytest.mark.parametrize('horovod, expected', [(TransferCost(1e-6, 1e-7, 1e-11), 'horovod'),
                                               (TransferCost(1e-2, 1e-3, 1e-8), 'lane')])
def test_a_search_chooses_the_faster_means(horovod, expected):
    planner = make_planner(cluster(2, 1, horovod=horovod))
    result = planner.search(seconds=None, proposals=400, seed=1)
    assert result.plan.store.dense == expected
    assert planner.predict(result.plan).seconds == result.prediction.seconds
    assert from_json(json.loads(json.dumps(result.plan.as_json()))).store.dense == expected
    # A search that begins with the other means leaves it.
    other = {'lane': 'horovod', 'horovod': 'lane'}[expected]
    start = planner.explicit(planner.splits(result.plan), {}, other)
    again = planner.search(seconds=None, proposals=400, seed=2, start=start)
    assert again.plan.store.dense == expected and again.prediction.seconds <= result.prediction.seconds


def test_fixed_sums_are_kept():
    there = cluster(2, 1, horovod=TransferCost(1e-6, 1e-7, 1e-11))
    free, fixed = make_planner(there), make_planner(there, sums='lane')
    found = fixed.search(seconds=None, proposals=200, seed=1)
    assert found.plan.store.dense == 'lane'
    assert found.prediction.seconds == free.predict(found.plan).seconds
    assert fixed.predict(from_json({'plan': 'data_parallel', 'dense': 'horovod'})).seconds == free.predict(
        data_parallel()).seconds > free.predict(from_json({'plan': 'data_parallel', 'dense': 'horovod'})).seconds


def test_a_chain_finds_the_optimum():
    planner = planner_on(cluster(2, 1, horovod=HOROVOD, rate=1e6))
    space = SearchSpace(planner.model.dataflow, 2, 1, planner.cluster.sums)
    problem = PlanEvaluator(planner.model, space)
    start = problem.decisions(planner.splits(data_parallel()))
    optimum = try_all(problem)
    found = run_chains(problem, {'data parallel': start}, SearchLimits(proposals=1500), seed=1)
    assert found.seconds == optimum.seconds


def test_a_file_without_the_costs_of_horovod_leaves_no_choice():
    cluster_spec = cluster(2, 1)
    assert cluster_spec.sums == () and cluster(2, 1, horovod=HOROVOD).sums == ('lane', 'horovod')
    planning = make_planner(cluster_spec).search(seconds=None, proposals=50)
    assert planning.plan.store.dense is None
    start = make_planner(cluster_spec).explicit(make_planner(cluster_spec).splits(data_parallel()), {}, 'horovod')
    assert make_planner(cluster_spec).search(seconds=None, proposals=50, start=start).plan.store.dense == 'horovod'


def test_a_file_with_some_costs_of_horovod_is_refused():
    value = cluster(2, 1, horovod=HOROVOD).as_json()
    del value['costs']['horovod_step']
    with pytest.raises(InputError, match='there is horovod_sum: give all of horovod_row_sum, horovod_step, '
                                         'horovod_sum, or none'):
        cluster_from_json(value)
