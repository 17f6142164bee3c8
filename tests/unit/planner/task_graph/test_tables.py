"""Tables in plans: what their routes take, that changes are what is made anew, and the best of all is found."""
import dataclasses
import itertools

import pytest
from hypothesis import given, settings, strategies as st
from mxnet.gluon import nn

from mxhybrid.base.errors import InputError
from mxhybrid.base.settings import TablePlan
from mxhybrid.parallel.plans.plan_json import from_json
from mxhybrid.parallel.plans.strategies import data_parallel
from mxhybrid.parallel.sharding.split import whole_on
from mxhybrid.planner.cluster.cluster_spec import TransferCost, cluster_from_json
from mxhybrid.planner.search.mcmc import SearchLimits, run_chains
from mxhybrid.planner.search.plan_evaluator import PlanEvaluator, random_decisions
from mxhybrid.planner.search.search_space import SearchSpace
from tests.helpers.planned_networks import check_proposals, cluster, planner, recommender
from tests.oracles.exhaustive_search import try_all

RANKS, BATCH, IDS = 4, 8, 20
USERS, ITEMS = 'net_embedding0_weight', 'net_embedding1_weight'


def planned_on(there, **keys):
    return planner(there, recommender(**keys), (BATCH, IDS))


@pytest.fixture(scope='module')
def planned():
    return planned_on(cluster(2, 2))


@pytest.fixture(scope='module')
def choices(planned):
    return SearchSpace(planned.model.dataflow, RANKS, 2)


def seconds(planned, **tables):
    """Of a step by data parallelism, with ways of the tables by the ends of their names."""
    plan = {'embedding%d_weight' % at: dict(zip(('route', 'partitions'), one.split()))
            for at, one in ((int(name[1:]), one) for name, one in tables.items())}
    for one in plan.values():
        one.update({'partitions': int(one['partitions'])} if 'partitions' in one else {})
    return planned.predict(from_json({'plan': 'data_parallel', 'tables': plan})).seconds


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_changes_are_what_is_made_anew(planned, choices, data):
    problem = PlanEvaluator(planned.model, choices)
    draws = [data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=problem.operators,
                                max_size=problem.operators)) for _ in range(4)]
    decisions = [random_decisions(choices, draw) for draw in draws]
    check_proposals(planned, problem, decisions, data.draw(st.integers(1, 2)))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_proposals_are_what_is_begun_anew(planned, choices, data):
    problem = PlanEvaluator(planned.model, choices)
    now = list(problem.decisions(planned.splits(data_parallel())))
    problem.begin(tuple(now))
    for _ in range(data.draw(st.integers(1, 6))):
        changes = {at: data.draw(st.sampled_from(list(problem.candidates(at)))) for at in data.draw(
            st.sets(st.integers(0, problem.operators - 1), min_size=1))}
        proposed = [changes.get(at, one) for at, one in enumerate(now)]
        other = PlanEvaluator(planned.model, choices)
        assert problem.propose(changes) == other.begin(tuple(proposed))
        assert problem.memory() == other.memory()
        if data.draw(st.booleans()):
            problem.accept()
            now = proposed
        else:
            problem.reject()
    assert problem.begin(tuple(now)) == PlanEvaluator(planned.model, choices).begin(tuple(now))


def test_what_is_not_said_is_what_the_store_does(planned, choices):
    problem = PlanEvaluator(planned.model, choices)
    found = problem.tables(problem.decisions(planned.splits(data_parallel())))
    assert found == {USERS: TablePlan('servers', 2), ITEMS: TablePlan('servers', 2)}
    assert all(one in choices.table_candidates(name) for name, one in found.items())
    assert seconds(planned) == seconds(planned, _0='servers 2', _1='servers 2') == seconds(planned, _0='servers')


def test_tables_are_on_all_ranks(planned, choices):
    graph = planned.graph
    embeddings = [one for one in graph.computing if one.op == 'Embedding']
    assert len(embeddings) == 2
    for one in embeddings:
        assert all(len(split.ranks) == RANKS for split in choices.candidates(one.number))
        assert whole_on(len(graph.shape(one)), range(RANKS)) in choices.candidates(one.number)


def test_a_table_goes_where_it_takes_least():
    """Links alone count: rows by servers, which are few of a large table and many of a small one, or all rows."""
    rate, free = 1e4, TransferCost(0.0, 0.0, 0.0)
    there = dataclasses.replace(cluster(2, 1, rate=rate, cost=free), link_latency_s=0.0)
    planned = planned_on(there, users=2000)
    dense = 2 * (8 * 128 + 8) * 4 / 2 / rate
    # 16 ids of each rank and all 32 of them, 64 bytes a row, of which a half lies on the other host.
    users = (16 * 64 / 2 + 32 * 64 / 2) / rate
    # 40 rows at most of the small one, 16 bytes each.
    items = (40 * 16 / 2 + 40 * 16 / 2) / rate
    assert seconds(planned) == pytest.approx(dense + users + items, rel=0.02)
    # All of its rows and their marks, of which each host sums a half.
    every = 2 * 40 * (16 + 4) / 2 / rate
    assert seconds(planned, _1='allreduce') == pytest.approx(dense + users + every, rel=0.02)
    assert seconds(planned, _0='allreduce') > 10 * seconds(planned)
    # On one server rows of the other host alone move, but all through the same link.
    assert seconds(planned, _0='servers 1') > seconds(planned)


def test_more_partitions_balance_links_and_cost_cores():
    slow = planned_on(cluster(2, 1, rate=1e4))
    assert seconds(slow, _0='servers 2') < seconds(slow, _0='servers 1')
    fast = planned_on(cluster(2, 1, rate=1e12, cost=TransferCost(1e-4, 1e-3, 1e-12)))
    assert seconds(fast, _0='servers 1') < seconds(fast, _0='servers 2') < seconds(fast, _0='servers 8')


def test_the_buffer_of_a_sum_takes_memory(planned):
    by_servers, by_allreduce = (planned.predict(from_json({'plan': 'data_parallel', 'tables': {
        'embedding0_weight': {'route': route}}})).largest_memory() for route in ('servers', 'allreduce'))
    assert by_allreduce - by_servers == 5000 * (16 + 1) * 4


def test_a_file_may_lack_what_sums_of_rows_cost():
    whole = cluster(2, 1)
    value = whole.as_json()
    del value['costs']['row_sum']
    there = cluster_from_json(value)
    assert 'row_sum' not in there.costs and there.digest() != whole.digest()
    assert seconds(planned_on(there), _1='allreduce') == seconds(planned_on(whole), _1='allreduce')
    with pytest.raises(InputError, match='costs: there is no sum: give all of exchange'):
        del value['costs']['sum']
        cluster_from_json(value)


@pytest.mark.parametrize('rate', [1e5, 1e7, 1e10])
@pytest.mark.parametrize('cost', [TransferCost(1e-4, 1e-5, 1e-9), TransferCost(1e-4, 1e-3, 1e-10)], ids=['few', 'many'])
def test_the_walk_finds_the_best_ways_of_tables(rate, cost):
    there = cluster(2, 1, rate=rate, cost=cost)
    planned = planned_on(there)
    choices = SearchSpace(planned.model.dataflow, 2, 1)
    problem = PlanEvaluator(planned.model, choices)
    start = problem.decisions(planned.splits(data_parallel()))
    best = min(itertools.product(*map(choices.table_candidates, choices.tables)),
               key=lambda ways: problem.begin(start[:-2] + ways))
    everything = try_all(problem)
    assert everything.seconds <= problem.begin(start[:-2] + best)
    found = run_chains(problem, {'data parallel': start}, SearchLimits(proposals=1500), seed=1)
    assert found.seconds == everything.seconds


def test_found_plans_say_how_rows_travel():
    planned = planned_on(cluster(2, 1, rate=1e6))
    found = planned.search(seconds=None, proposals=300, seed=1)
    assert set(found.plan.store.tables) == {'embedding0_weight', 'embedding1_weight'}
    assert planned.predict(found.plan).seconds == found.prediction.seconds
    again = planned.search(seconds=None, proposals=10, start=found.plan)
    assert again.prediction.seconds <= found.prediction.seconds


def test_a_search_from_python(tmp_path):
    import mxhybrid
    from mxhybrid.planner.cluster.cluster_spec import save

    path = str(tmp_path / 'cluster.json')
    save(path, cluster(2, 1, rate=1e6))
    net = nn.HybridSequential(prefix='net_')
    with net.name_scope():
        net.add(nn.Embedding(50, 4, sparse_grad=True), nn.Flatten(), nn.Dense(2, in_units=8))
    net.initialize()
    found = mxhybrid.planner.search(net, (4, 2), path, seconds=None, proposals=50,
                                    profiles=str(tmp_path / 'profiles.json'))
    assert isinstance(found, mxhybrid.planner.FoundPlan) and found.plan.workers == 2
    assert found.prediction.seconds <= found.others['data parallel'].seconds
    mxhybrid.parallel.save(str(tmp_path / 'plan.json'), found.plan)
    assert mxhybrid.parallel.load(str(tmp_path / 'plan.json')).as_json() == found.plan.as_json()
    with pytest.raises(mxhybrid.InputError, match='another cluster'):
        mxhybrid.planner.search(net, (4, 2), cluster(2, 1, rate=2e6), start=found.plan)
    with pytest.raises(mxhybrid.InputError, match='cannot read nowhere.json'):
        mxhybrid.planner.search(net, (4, 2), 'nowhere.json')
