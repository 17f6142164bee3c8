"""Layouts of arrays around joint BatchNorms: a relu joins its BatchNorm, and arrays are converted around both."""
import numpy as np
import pytest
from mxnet.gluon import nn

from mxhybrid.parallel.plans.strategies import data_parallel, grid
from mxhybrid.parallel.sharding.split import Split
from mxhybrid.planner.task_graph.array_layouts import ArrayLayouts
from tests.helpers.gluon_nets import Net, in_turn, initialised
from tests.helpers.planned_networks import Times, cluster, make_planner

CONVERSION_S = 1e-8 * 8 * 4 * 6 * 6


def net_of(between, reads_twice=False):
    """Return a network of two convolutions; the first has a BatchNorm, which `between` or also a sum reads."""
    def call(F, data, conv, norm, act, *layers):
        normalized = norm(conv(data))
        return in_turn(F, act(normalized) + normalized if reads_twice else act(normalized), *layers)
    return Net(lambda: [nn.Conv2D(4, 3, padding=1, in_channels=3), nn.BatchNorm(in_channels=4), nn.Activation(between),
                        nn.Conv2D(4, 3, padding=1, in_channels=4), nn.Activation('relu'), nn.Flatten(),
                        nn.Dense(5, in_units=4 * 36)], call)


def pooled_net(pooling, act=True):
    """Return a network with a BatchNorm, a relu unless it has no `act`, a pooling, and a convolution."""
    return Net(lambda: [nn.Conv2D(4, 3, padding=1, in_channels=3), nn.BatchNorm(in_channels=4),
                        *[nn.Activation('relu')] * act, pooling, nn.Conv2D(4, 1, in_channels=4)])


def planner_of(net, dtype='float32', ranks=2, size=6):
    return make_planner(cluster(ranks), initialised(net, dtype=dtype), (8 * ranks, 3, size, size), dtype=dtype)


def seconds_of(planner, plan, op, position=0):
    """Return the seconds of each shard of the operator `op` at a position among its kind, forward and backward."""
    operator = [operator for operator in planner.graph.computing if operator.op == op][position]
    split = planner.splits(plan)[operator.number]
    plain = np.array([Times().shard_seconds(planner.graph, operator, shard) for shard in split.shards(
        planner.graph.shape(operator)).values()]).T
    seconds = [planner.model._seconds(operator.number, split, backward) for backward in (False, True)]
    return np.array(seconds), plain


def conversions_of(planner):
    """Return how many whole arrays are converted around the BatchNorm on each rank, forward and backward."""
    seconds, plain = seconds_of(planner, data_parallel(), 'BatchNorm')
    return (seconds - plain) / CONVERSION_S


def test_a_relu_joins_the_batchnorm_it_reads():
    planner = planner_of(net_of('relu'))
    joined, alone = (seconds_of(planner, data_parallel(), 'Activation', position) for position in (0, 1))
    assert not joined[0].any() and joined[1].all()
    assert (alone[0] == alone[1]).all()


def test_arrays_are_converted_around_a_joint_batchnorm():
    for net in (net_of('relu'), pooled_net(nn.MaxPool2D(3, 2))):
        assert conversions_of(planner_of(net)) == pytest.approx(np.array([[1, 1], [2, 2]]))


@pytest.mark.parametrize('act', [False, True])
def test_a_pooling_is_part_of_the_joint_batchnorm(act):
    planner = planner_of(pooled_net(nn.MaxPool2D(2, 2), act))
    assert not seconds_of(planner, data_parallel(), 'Pooling')[0].any()
    # A quarter of the elements is converted for the convolution that reads the pooling, and as many gradients.
    assert conversions_of(planner) == pytest.approx(np.array([[0.25, 0.25], [1.25, 1.25]]))


@pytest.mark.parametrize('pooling, size, plan', [
    (nn.MaxPool2D(3, 2), 6, data_parallel()), (nn.AvgPool2D(2, 2), 6, data_parallel()),
    (nn.MaxPool2D(2, 2), 7, data_parallel()), (nn.MaxPool2D(2, 2), 6, grid(domain=(2,)))],
    ids=['windows of 3', 'averages', 'odd images', 'strips of 3 rows'])
def test_other_poolings_take_their_own_time(pooling, size, plan):
    planner = planner_of(pooled_net(pooling), size=size)
    seconds, plain = seconds_of(planner, plan, 'Pooling')
    assert (seconds == plain).all()


@pytest.mark.parametrize('net, dtype, ranks', [
    (net_of('relu'), 'float64', 2), (net_of('relu'), 'float32', 1), (net_of('sigmoid'), 'float32', 2),
    (net_of('relu', True), 'float32', 2)], ids=['float64', 'one rank', 'no relu', 'two readers'])
def test_other_activations_take_their_own_time(net, dtype, ranks):
    planner = planner_of(net, dtype, ranks)
    seconds, plain = seconds_of(planner, data_parallel(), 'Activation')
    assert (seconds == plain).all()


def test_a_batchnorm_of_one_rank_needs_no_conversions():
    assert not conversions_of(planner_of(net_of('relu'), ranks=1)).any()


def test_channels_have_statistics_of_their_own():
    planner = planner_of(net_of('relu'))
    relu = next(operator for operator in planner.graph.computing if operator.op == 'Activation')
    by_samples = planner.splits(data_parallel())[relu.number]
    layouts = ArrayLayouts(planner.model.dataflow, planner._times(planner.graph, False).conversions)
    assert layouts.is_part_of_norm(relu.number, by_samples)
    assert not layouts.is_part_of_norm(relu.number, Split((1, 2, 1, 1), (0, 1)))


@pytest.mark.parametrize('back', [False, True])
def test_arrays_are_converted_for_redistributions(back):
    """A joint BatchNorm before the redistribution makes an array in the default layout already."""
    works = {}
    for joint in (False, True):
        planner = planner_of(Net(lambda joint=joint: [
            nn.Conv2D(4, 3, padding=1, in_channels=3), *[nn.BatchNorm(in_channels=4)] * joint, nn.Activation('relu'),
            nn.Conv2D(4, 3, padding=1, in_channels=4)]))
        model, splits = planner.model, planner.splits(grid(domain=(2,)))
        relu, reader = [operator.number for operator in planner.graph.computing][-2:]
        flow = model.flow((relu, 0), [model.operator(number, splits[number]) for number in (relu, reader)])
        works[joint] = model.redistribution_tasks((relu, 0), flow, back).content.tasks
        works[joint] = works[joint][np.isin(works[joint]['resource'], model.machine.core)]['work']
    # A rank holds three rows, and needs one row of the other rank and one of the border.
    row_s = 1e-8 * 16 * 4 * 6
    before_s, after_s = (5 * row_s, 3 * row_s) if back else (3 * row_s, 5 * row_s)
    assert works[False] - works[True] == pytest.approx(np.array([before_s] * 2 + [after_s] * 2))


def test_without_blocked_arrays_nothing_is_converted():
    planner = planner_of(net_of('relu'))
    norm = next(operator for operator in planner.graph.computing if operator.op == 'BatchNorm')
    conversions = planner._times(planner.graph, False).conversions._replace(blocked=set())
    layouts = ArrayLayouts(planner.model.dataflow, conversions)
    assert layouts.conversion_seconds(norm.number, (8, 4, 6, 6)) == (0.0, 0.0)
