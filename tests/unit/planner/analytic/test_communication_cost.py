"""Gholami's cost model, its tables and its picture."""
import dataclasses
import itertools
import math

import pytest
from hypothesis import given, settings, strategies as st
from mxnet import gluon

from mxhybrid import InputError
from mxhybrid.parallel.ops.dimension_names import Dimensions
from mxhybrid.planner.analytic import communication_cost as costs
from mxhybrid.planner.analytic.communication_cost import PAPER_NETWORK, AlphaBeta, ProcessGrid
from mxhybrid.planner.analytic.cost_table import cost_rows, cost_table, draw_costs, layer_cost_table
from mxhybrid.planner.analytic.layer_sizes import ALEXNET, LayerSizes, convolution_sizes, dense_sizes, layer_sizes
from mxhybrid.planner.cluster.cluster_spec import COST_KINDS, Cluster, Host, TransferCost
from mxhybrid.planner.simulator.resource_groups import TokenBucket
from tests.helpers.gluon_nets import Net

from .test_layer_sizes import graph_of

#: A message takes 1 s and a word 1 ms.
PLAIN = AlphaBeta(1.0, 4000.0)
CONV = convolution_sizes('conv', (2, 12, 10), 6, 3, pad=1)
DENSE = dense_sizes('dense', 720, 40)


def close(cost, latency, words):
    """Return whether seconds are the latency and the words of the network `PLAIN`."""
    return cost == pytest.approx(latency + words / 1000, rel=1e-12)


def test_collectives():
    assert PLAIN.allgather(1, 100) == PLAIN.allreduce(1, 100) == 0
    assert close(PLAIN.allgather(4, 100), 2, 75) and close(PLAIN.allreduce(4, 100), 4, 150)
    assert close(PLAIN.allgather(5, 100), 3, 80)
    assert close(PLAIN.message(100), 1, 100)
    assert AlphaBeta(0, 4000.0, word_bytes=2).message(100) == 0.05


def test_batch():
    time = costs.batch_time(DENSE, 16, 8, PLAIN)
    assert time.forward == time.backward == 0 and close(time.sums, 6, 2 * 7 / 8 * 40 * 721) and not time.idle
    assert costs.batch_time(DENSE, 4, 8, PLAIN).idle


def test_the_product_in_one_and_a_half_dimensions():
    time = costs.model_time(DENSE, 16, ProcessGrid(4, 2), PLAIN)
    assert close(time.forward, 2, 3 / 4 * 16 / 2 * 40)
    assert close(time.backward, 4, 2 * 3 / 4 * 16 / 2 * 720)
    assert close(time.sums, 2, 2 * 1 / 2 * 40 * 721 / 4)
    first = costs.model_time(dataclasses.replace(DENSE, first=True), 16, ProcessGrid(4, 2), PLAIN)
    assert first.backward == 0 and (first.forward, first.sums) == (time.forward, time.sums)
    assert costs.model_time(DENSE, 16, ProcessGrid(1, 8), PLAIN) == costs.batch_time(DENSE, 16, 8, PLAIN)
    assert costs.model_time(DENSE, 16, ProcessGrid(8, 1), PLAIN).sums == 0
    assert costs.model_time(DENSE, 16, ProcessGrid(41, 1), PLAIN).idle


def test_domain():
    time = costs.domain_time(CONV, 16, ProcessGrid(4, 2), PLAIN)
    assert close(time.forward, 1, 16 / 2 * 1 * 10 * 2) and close(time.backward, 1, 16 / 2 * 1 * 10 * 6)
    assert close(time.sums, 6, 2 * 7 / 8 * CONV.weights) and not time.idle
    assert costs.domain_time(CONV, 16, ProcessGrid(1, 8), PLAIN) == costs.batch_time(CONV, 16, 8, PLAIN)
    one_row = convolution_sizes('conv', (2, 12, 10), 6, 1)
    assert costs.domain_time(one_row, 16, ProcessGrid(4, 1), PLAIN).forward == 0
    assert costs.domain_time(CONV, 16, ProcessGrid(13, 1), PLAIN).idle
    assert costs.domain_time(convolution_sizes('conv', (2, 12, 10), 6, 5, pad=2), 16, ProcessGrid(12, 1), PLAIN).idle


def test_choices_of_kinds_of_layers():
    grid = ProcessGrid(2, 2)
    assert list(costs.layer_times(CONV, 4, grid, PLAIN)) == ['batch', 'model', 'domain']
    assert list(costs.layer_times(DENSE, 4, grid, PLAIN)) == ['batch', 'model']
    other = costs.layer_times(LayerSizes('gamma', 'other', 64), 2, grid, PLAIN)
    assert list(other) == ['batch'] and not other['batch'].idle  # gradients of all ranks are summed anyway


def test_changes_of_layout():
    grid = ProcessGrid(4, 2)
    for before, after in (('batch', 'model'), ('model', 'batch'), ('domain', 'model'), ('model', 'domain')):
        assert close(costs.redistribution_time(before, after, DENSE, 16, grid, PLAIN), 2, 3 / 4 * 8 * 720)
    assert close(costs.redistribution_time('batch', 'domain', CONV, 16, grid, PLAIN), 4, 2 * 3 / 4 * 8 * 240 / 4)
    assert costs.redistribution_time('model', 'model', DENSE, 16, grid, PLAIN) == 0
    assert costs.redistribution_time('batch', 'model', DENSE, 16, ProcessGrid(1, 8), PLAIN) == 0


def test_a_plan_counts_changes_between_its_layers():
    other = LayerSizes('gamma', 'other', 64)
    plan = costs.plan_on_grid([CONV, other, DENSE], 16, ProcessGrid(4, 2), PLAIN, ('domain', 'model'))
    assert plan.choices == ('domain', 'batch', 'model')
    redistribution = costs.redistribution_time('domain', 'model', DENSE, 16, plan.grid, PLAIN)
    assert plan.redistributions == (0, 0, redistribution)
    assert plan.seconds == pytest.approx(sum(time.seconds for time in plan.times) + plan.redistributions[2])


def test_alexnet_has_the_shape_of_the_paper():
    """B = 2048, 2 us, 6 GB/s: neither pure batch nor pure model parallelism is cheapest, and the gain of a grid over
    pure batch parallelism grows with the ranks.
    """
    gains, gains_of_grid = [], []
    for ranks in (8, 16, 32, 64, 128, 256, 512):
        batch, model, grid, choices = [plan(ALEXNET, 2048, ranks, PAPER_NETWORK) for plan in (
            costs.pure_batch, costs.pure_model, costs.best_grid, costs.best_choices)]
        assert choices.seconds < grid.seconds <= batch.seconds < model.seconds
        assert 1 < choices.grid.model < ranks and not choices.idle
        assert choices.choices == ('batch',) * 5 + ('model',) * 3
        gains.append(batch.seconds / choices.seconds)
        gains_of_grid.append(batch.seconds / grid.seconds)
    assert gains == sorted(gains) and gains[0] > 1.5 and gains[-1] > 5
    assert gains_of_grid == sorted(gains_of_grid) and gains_of_grid[-1] > 2
    assert 1 < costs.best_grid(ALEXNET, 2048, 512, PAPER_NETWORK).grid.model < 512


def test_domain_goes_beyond_what_batches_have():
    """More ranks than samples: without other choices some have nothing to compute."""
    layers = [dataclasses.replace(CONV, first=True), convolution_sizes('second', (6, 12, 10), 6, 3, pad=1)]
    assert costs.pure_batch(layers, 4, 8, PAPER_NETWORK).idle
    best = costs.best_choices(layers, 4, 8, PAPER_NETWORK)
    assert not best.idle and best.grid.batch <= 4 and 'batch' not in best.choices


def test_a_plan_to_start_from():
    """The dense layers of MXNet's AlexNet are split as the formulas say, the other layers by samples."""
    graph = graph_of(gluon.model_zoo.vision.alexnet(classes=1000), (64, 3, 224, 224))
    layers, dimensions = layer_sizes(graph, 64), Dimensions(graph, {'data': 0})
    plan = costs.AnalyticPlan(ProcessGrid(4, 2), ('domain',) + ('batch',) * 4 + ('model',) * 3, (), ())
    settled = costs.split_plan(layers, plan).resolve(graph, dimensions, 8)
    degrees = {graph.label(one): settled.splits[one.number].degrees for one in graph.computing}
    assert [degrees[layer.name] for layer in layers] == [(2, 1, 4, 1)] + [(8, 1, 1, 1)] * 4 + [(2, 4)] * 3
    assert settled.notes == {} and degrees['pool0_fwd'] == (2, 1, 4, 1)
    best = costs.best_choices(layers, 64, 8, PAPER_NETWORK)
    assert 'model' in best.choices and costs.split_plan(layers, best).resolve(graph, dimensions, 8).notes == {}


def test_calls_of_a_layer_have_choices_of_their_own():
    graph = graph_of(Net(lambda: [gluon.nn.Dense(8, flatten=False, in_units=8)],
                         lambda F, data, dense: dense(F.tanh(dense(data)))), (16, 8))
    layers = layer_sizes(graph, 16)
    assert [layer.name for layer in layers] == ['dense0_fwd', 'dense0_fwd#2']
    plan = costs.AnalyticPlan(ProcessGrid(4, 2), ('batch', 'model'), (), ())
    settled = costs.split_plan(layers, plan).resolve(graph, Dimensions(graph, {'data': 0}), 8)
    degrees = {graph.label(one): settled.splits[one.number].degrees for one in graph.computing}
    assert degrees['dense0_fwd'] == (8, 1) and degrees['dense0_fwd#2'] == (2, 4)


def test_grids():
    assert costs.grids(12) == [(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)]
    assert str(ProcessGrid(3, 4)) == '3 x 4' and ProcessGrid(3, 4).ranks == 12


@st.composite
def layer(draw):
    """Any layer, as large as one likes."""
    size = st.integers(1, 10 ** 6)
    kind = draw(st.sampled_from(['convolution', 'dense', 'other']))
    if kind == 'other':
        return LayerSizes('other', kind, draw(size))
    return LayerSizes('layer', kind, draw(size), draw(size), draw(size), draw(st.integers(1, 64)),
                      *draw(st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(0, 3))))


@settings(max_examples=60, deadline=None)
@given(st.lists(layer(), min_size=1, max_size=4), st.integers(1, 64), st.integers(1, 12),
       st.floats(0, 1e-2), st.floats(1e3, 1e10))
def test_the_best_choices_are_the_best_of_all(layers, batch, ranks, alpha, rate):
    network = AlphaBeta(alpha, rate)
    best = costs.best_choices(layers, batch, ranks, network)
    least = math.inf
    for grid in costs.grids(ranks):
        layer_choices = [costs.layer_times(layer, batch, grid, network) for layer in layers]
        may = [[choice for choice in times if not times[choice].idle] or list(times) for times in layer_choices]
        for choices in itertools.product(*may):
            seconds, before = 0.0, None
            idle = any(times[choice].idle for times, choice in zip(layer_choices, choices))
            for layer, times, choice in zip(layers, layer_choices, choices):
                seconds += times[choice].seconds
                if layer.kind != 'other':
                    if before:
                        seconds += costs.redistribution_time(before, choice, layer, batch, grid, network)
                    before = choice
            if idle <= best.idle:
                assert idle == best.idle
                least = min(least, seconds)
    assert best.seconds == pytest.approx(least, rel=1e-9, abs=1e-15)


def cluster(hosts):
    """Return a cluster of hosts with two ranks each."""
    costs = dict.fromkeys(COST_KINDS, TransferCost(0.0, 0.0, 0.0))
    costs['redistribution'] = TransferCost(3e-4, 1e-4, 1e-9, 5e-5)
    return Cluster((Host('a', 2, 2.0),) * hosts, TokenBucket(1e7), 1e-4, TokenBucket(1e9), 1e-6, costs)


def test_a_cluster_as_one_network():
    between = costs.fit_alpha_beta(cluster(2))
    assert between.alpha_s == pytest.approx(1e-4 + 5e-5 + 3e-4 + 1e-4)
    assert between.bytes_per_s == pytest.approx(1 / (1 / 5e6 + 1e-9)) and between.word_bytes == 4
    alone = costs.fit_alpha_beta(cluster(1), word_bytes=2)
    assert alone.alpha_s == pytest.approx(1e-6 + 5e-5 + 3e-4 + 1e-4)
    assert alone.bytes_per_s == pytest.approx(5e8) and alone.word_bytes == 2


@pytest.mark.parametrize('change, message', [
    ({'layers': []}, 'layers is empty'), ({'batch': 0}, 'batch=0'), ({'batch': 2.5}, 'batch=2.5'),
    ({'network': AlphaBeta(-1.0, 1.0)}, 'alpha=-1.0'), ({'network': AlphaBeta(0.0, 0.0)}, '0.0 bytes'),
    ({'network': AlphaBeta(math.nan, 1.0)}, 'alpha=nan'),
    ({'ranks': 0}, 'ranks='), ({'ranks': -1}, 'ranks='), ({'ranks': True}, 'ranks=')])
@pytest.mark.parametrize('search', [costs.best_grid, costs.best_choices, costs.pure_batch])
def test_values_that_are_no_numbers_are_refused(change, message, search):
    with pytest.raises(InputError, match=message):
        search(**{'layers': ALEXNET, 'batch': 64, 'ranks': 4, 'network': PAPER_NETWORK, **change})


def test_cost_against_ranks():
    lines = cost_table(ALEXNET, 2048, [1, 8, 512], PAPER_NETWORK).splitlines()
    assert lines[0] == ('communication in a step by the formulas of Gholami et al. (2018): batch of 2048, 2 us, '
                        '6.0 GB/s, 62378344 weights')
    assert lines[1].split('  ')[0] == 'ranks' and lines[-1].startswith('* some ranks have no work')
    one, eight, many = [line.split() for line in lines[3:6]]
    assert (one[0], one[-1]) == ('1', '1.00') and '1 x 1' in lines[3]
    assert eight[0] == '8' and eight[1:3] == ['72.9', 'ms'] and '4 x 2' in lines[4] and '*' not in lines[4]
    assert many[0] == '512' and '1.61 s*' in lines[5] and float(many[-1]) > float(eight[-1]) > 1
    assert len({len(line) for line in lines[1:6]}) == 1


def test_layer_by_layer():
    lines = layer_cost_table(ALEXNET, 2048, 64, PAPER_NETWORK).splitlines()
    assert lines[0].startswith('layers on 64 ranks as a grid of 8 x 8: ')
    rows = {line.split()[0]: line.split() for line in lines[3:11]}
    assert list(rows) == [layer.name for layer in ALEXNET]
    assert 'batch' in rows['conv3'] and 'model' in rows['fc6'] and '-' in rows['fc6']


def test_rows():
    few, many = cost_rows(ALEXNET, 2048, (1, 4), PAPER_NETWORK)
    assert (few.ranks, few.gain, few.batch.seconds) == (1, 1.0, 0)
    assert many.gain == many.batch.seconds / many.choices.seconds > 1
    with pytest.raises(InputError, match='ranks=0'):
        cost_rows(ALEXNET, 2048, (4, 0), PAPER_NETWORK)


@pytest.mark.parametrize('ranks', [(1, 2, 4), (8, 16, 32)])
def test_picture(ranks, tmp_path):
    rows, picture = cost_rows(ALEXNET, 2048, ranks, PAPER_NETWORK), tmp_path / 'formula.png'
    draw_costs(rows, str(picture))
    assert picture.read_bytes().startswith(b'\x89PNG')
    with pytest.raises(InputError, match='cannot be written'):
        draw_costs(rows, str(tmp_path / 'none' / 'formula.png'))
