"""Updates that ranks divide: their time, the memory of states, and the gather of weights."""
import dataclasses

import numpy as np
import pytest
from mxnet.gluon import nn

from mxhybrid.parallel.plans.strategies import data_parallel, grid
from mxhybrid.planner.cluster.cluster_spec import TransferCost
from tests.helpers.gluon_nets import Net, initialised
from tests.helpers.planned_networks import cluster, make_planner, recommender

RANKS, WIDTH, BATCH = 4, 256, 8
#: An update takes long, and sums take no time of cores.
COST = TransferCost(0.0, 0.0, 0.0)
UPDATE = TransferCost(1e-3, 0.0, 1e-8)
BYTES = 4 * WIDTH * (WIDTH + 1)


def planner_of(shard_updates, states=0, rate=1e8, hosts=RANKS):
    net = initialised(Net(lambda: [nn.Dense(WIDTH, in_units=WIDTH)]))
    there = cluster(hosts, RANKS // hosts, rate=rate, cost=COST)
    there = dataclasses.replace(there, costs={**there.costs, 'update': UPDATE})
    return make_planner(there, net, (BATCH, WIDTH), states=states, shard_updates=shard_updates)


def predictions(plan=None, **keys):
    """Return the predictions of a plan, by default data parallelism, with whole updates and with divided ones."""
    return [planner_of(sharded, **keys).predict(plan or data_parallel()) for sharded in (False, True)]


def of_kind(prediction, kind, rank=None):
    return [task for task in prediction.tasks() if task.kind == kind and rank in (None, task.where)]


def test_each_rank_updates_a_part_of_the_weights():
    whole, divided = predictions()
    for rank in range(RANKS):
        (update,), (part,) = (of_kind(prediction, 'update', rank) for prediction in (whole, divided))
        assert update.end_s - update.start_s == pytest.approx(UPDATE.fixed_s + UPDATE.per_byte_s * BYTES)
        assert part.end_s - part.start_s == pytest.approx(UPDATE.fixed_s + UPDATE.per_byte_s * BYTES / RANKS)
    assert whole.seconds - divided.seconds == pytest.approx(UPDATE.per_byte_s * BYTES * (1 - 1 / RANKS), rel=0.01)


@pytest.mark.parametrize('hosts', [2, 4])
def test_both_redistributions_move_the_bytes_of_an_allreduce(hosts):
    whole, divided = predictions(hosts=hosts)
    summed, scattered, gathered = (sum(task.size for task in of_kind(prediction, kind))
                                   for prediction, kind in ((whole, 'sum'), (divided, 'sum'), (divided, 'gather')))
    assert summed == scattered + gathered > 0 and scattered == gathered
    assert not of_kind(whole, 'gather')
    update = max(task.end_s for task in of_kind(divided, 'update'))
    assert all(task.start_s >= min(other.start_s for other in of_kind(divided, 'update'))
               for task in of_kind(divided, 'gather')) and divided.seconds > update


@pytest.mark.parametrize('states', [0, 1, 2])
def test_each_rank_keeps_the_states_of_its_part(states):
    whole, divided = predictions(states=states)
    np.testing.assert_allclose(whole.memory - divided.memory, BYTES * states * (1 - 1 / RANKS))


def test_weights_that_a_plan_splits_are_as_without():
    whole, divided = predictions(grid(model=RANKS), states=1)
    assert whole.seconds == divided.seconds
    np.testing.assert_array_equal(whole.memory, divided.memory)


def test_tables_are_as_without():
    whole, divided = (make_planner(cluster(RANKS), recommender(), (8, 20), states=1, shard_updates=sharded).predict(
        data_parallel()) for sharded in (False, True))
    tables = 4 * (5000 * 16 + 40 * 4)
    dense = 4 * (8 * 128 + 8)
    np.testing.assert_allclose(whole.memory - divided.memory, dense * (1 - 1 / RANKS))
    assert tables > dense and len(of_kind(whole, 'pull')) == len(of_kind(divided, 'pull')) > 0


def test_a_search_knows_of_divided_updates():
    found = planner_of(True, rate=1e5).search(seconds=None, proposals=40)
    again = planner_of(True, rate=1e5).predict(found.plan)
    assert again.seconds == found.prediction.seconds
