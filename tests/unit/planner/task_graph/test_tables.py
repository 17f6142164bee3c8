"""Tables in plans: the time of their routes, proposals, and a search for the best routes."""
import dataclasses
import itertools

import pytest
from hypothesis import given, settings, strategies as st
from mxnet.gluon import nn

from mxhybrid import parallel, planner as planner_package
from mxhybrid.base.errors import InputError
from mxhybrid.base.settings import TablePlan
from mxhybrid.parallel.plans.plan_json import from_json
from mxhybrid.parallel.plans.strategies import data_parallel
from mxhybrid.parallel.sharding.split import whole_on
from mxhybrid.planner.cluster.cluster_spec import TransferCost, save
from mxhybrid.planner.search.mcmc import SearchLimits, run_chains
from mxhybrid.planner.search.plan_evaluator import PlanEvaluator
from tests.helpers.gluon_nets import Net, initialised
from tests.helpers.planned_networks import cluster, make_planner, recommender
from tests.oracles.exhaustive_search import try_all

RANKS, BATCH, IDS = 4, 8, 20
USERS, ITEMS = 'net_embedding0_weight', 'net_embedding1_weight'


def planner_on(there, **keys):
    return make_planner(there, recommender(**keys), (BATCH, IDS))


@pytest.fixture(scope='module')
def planner():
    return planner_on(cluster(2, 2))


def seconds(planner, **tables):
    """Return the seconds of a step by data parallelism, given routes of tables: `_0` is that of the first one."""
    return predict(planner, **tables).seconds


def predict(planner, **tables):
    plans = {}
    for name, words in tables.items():
        route, *partitions = words.split()
        plans['embedding%s_weight' % name[1:]] = {'route': route, **dict(zip(['partitions'], map(int, partitions)))}
    return planner.predict(from_json({'plan': 'data_parallel', 'tables': plans}))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_proposal_takes_as_long_as_a_new_beginning(planner, data):
    problem = PlanEvaluator(planner.model, planner._space)
    current = list(problem.decisions(planner.splits(data_parallel())))
    problem.begin(tuple(current))
    for _ in range(data.draw(st.integers(1, 6))):
        changes = {index: data.draw(st.sampled_from(list(problem.candidates(index)))) for index in data.draw(
            st.sets(st.integers(0, problem.operators - 1), min_size=1))}
        proposed = [changes.get(index, choice) for index, choice in enumerate(current)]
        other = PlanEvaluator(planner.model, planner._space)
        assert problem.propose(changes) == other.begin(tuple(proposed))
        assert problem.memory() == other.memory()
        if data.draw(st.booleans()):
            problem.accept()
            current = proposed
        else:
            problem.reject()
    assert problem.begin(tuple(current)) == PlanEvaluator(planner.model, planner._space).begin(tuple(current))


def test_a_table_goes_as_the_store_chooses(planner):
    problem = PlanEvaluator(planner.model, planner._space)
    plans = problem.tables(problem.decisions(planner.splits(data_parallel())))
    assert plans == {USERS: TablePlan('servers', 2), ITEMS: TablePlan('servers', 2)}
    assert all(plan in planner._space.table_candidates(name) for name, plan in plans.items())
    assert seconds(planner) == seconds(planner, _0='servers 2', _1='servers 2') == seconds(planner, _0='servers')


def test_tables_are_on_all_ranks(planner):
    graph = planner.graph
    embeddings = [operator for operator in graph.computing if operator.op == 'Embedding']
    assert len(embeddings) == 2
    for embedding in embeddings:
        candidates = planner._space.candidates(embedding.number)
        assert all(len(split.ranks) == RANKS for split in candidates)
        assert whole_on(len(graph.shape(embedding)), range(RANKS)) in candidates


def test_routes_of_tables_take_time_by_their_bytes():
    """Servers move the touched rows, few of a large table and many of a small one; allreduce moves all rows."""
    rate, free = 1e4, TransferCost(0.0, 0.0, 0.0)
    there = dataclasses.replace(cluster(2, 1, rate=rate, cost=free), link_latency_s=0.0)
    planner = planner_on(there, users=2000)
    dense = 2 * (8 * 128 + 8) * 4 / 2 / rate
    # Push 16 ids of each rank, pull all 32, 64 bytes for each row; a half of the rows is on the other host.
    users = (16 * 64 / 2 + 32 * 64 / 2) / rate
    # Push and pull at most all 40 rows of the small table, 16 bytes for each.
    items = (40 * 16 / 2 + 40 * 16 / 2) / rate
    assert seconds(planner) == pytest.approx(dense + users + items, rel=0.02)
    # All rows of the small table and their marks; each host sums a half.
    every = 2 * 40 * (16 + 4) / 2 / rate
    assert seconds(planner, _1='allreduce') == pytest.approx(dense + users + every, rel=0.02)
    assert seconds(planner, _0='allreduce') > 10 * seconds(planner)
    # With one server, only rows of the other host move, but all through the same link.
    assert seconds(planner, _0='servers 1') > seconds(planner)


def test_more_partitions_balance_links_and_take_cpu_time():
    slow = planner_on(cluster(2, 1, rate=1e4))
    assert seconds(slow, _0='servers 2') < seconds(slow, _0='servers 1')
    fast = planner_on(cluster(2, 1, rate=1e12, cost=TransferCost(1e-4, 1e-3, 1e-12)))
    assert seconds(fast, _0='servers 1') < seconds(fast, _0='servers 2') < seconds(fast, _0='servers 8')


def test_the_buffer_of_a_sum_takes_memory(planner):
    by_servers, by_allreduce = (predict(planner, _0=route).largest_memory() for route in ('servers', 'allreduce'))
    assert by_allreduce - by_servers == 5000 * (16 + 1) * 4


@pytest.mark.parametrize('rate', [1e5, 1e7, 1e10])
@pytest.mark.parametrize('cost', [TransferCost(1e-4, 1e-5, 1e-9), TransferCost(1e-4, 1e-3, 1e-10)], ids=['few', 'many'])
def test_a_chain_finds_the_best_routes_of_tables(rate, cost):
    planner = planner_on(cluster(2, 1, rate=rate, cost=cost))
    problem, space = PlanEvaluator(planner.model, planner._space), planner._space
    start = problem.decisions(planner.splits(data_parallel()))
    best = min(itertools.product(*map(space.table_candidates, space.tables)),
               key=lambda routes: problem.begin(start[:-2] + routes))
    optimum = try_all(problem)
    assert optimum.seconds <= problem.begin(start[:-2] + best)
    found = run_chains(problem, {'data parallel': start}, SearchLimits(proposals=1500), seed=1)
    assert found.seconds == optimum.seconds


def test_found_plans_name_the_routes_of_tables():
    planner = planner_on(cluster(2, 1, rate=1e6))
    best = planner.search(seconds=None, proposals=300, seed=1)
    assert set(best.plan.store.tables) == {'embedding0_weight', 'embedding1_weight'}
    assert planner.predict(best.plan).seconds == best.prediction.seconds
    again = planner.search(seconds=None, proposals=10, start=best.plan)
    assert again.prediction.seconds <= best.prediction.seconds


def test_a_search_from_python(tmp_path):
    path = str(tmp_path / 'cluster.json')
    save(path, cluster(2, 1, rate=1e6))
    net = initialised(Net(lambda: [nn.Embedding(50, 4, sparse_grad=True), nn.Flatten(), nn.Dense(2, in_units=8)]))
    result = planner_package.search(net, (4, 2), path, seconds=None, proposals=50,
                                     profiles=str(tmp_path / 'profiles.json'))
    assert isinstance(result, planner_package.FoundPlan) and result.plan.workers == 2
    assert result.prediction.seconds <= result.others['data parallel'].seconds
    parallel.save(str(tmp_path / 'plan.json'), result.plan)
    assert parallel.load(str(tmp_path / 'plan.json')).as_json() == result.plan.as_json()
    with pytest.raises(InputError, match='another cluster'):
        planner_package.search(net, (4, 2), cluster(2, 1, rate=2e6), start=result.plan)
    with pytest.raises(InputError, match='cannot read nowhere.json'):
        planner_package.search(net, (4, 2), 'nowhere.json')
