"""The report names operators of the joint batch, with reason and cost, and has one line for a norm of operators."""
import pytest
from mxnet.gluon import nn

from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.strategies import data_parallel
from mxhybrid.parallel.runtime.joint_work import joint_operators, joint_warning, whole_outputs
from mxhybrid.parallel.runtime.layout_table import layout_table
from mxhybrid.parallel.runtime.network_shards import NetworkShards
from mxhybrid.parallel.runtime.report_lines import report_lines
from mxhybrid.parallel.sharding.split import Split

from ....helpers.gluon_nets import Net, initialised
from ....helpers.split_programs import explicit_plan, labelled, splits_of, whole_splits

RANKS = 4


def told(make, plan_of=lambda network: data_parallel()):
    """Return the lines about operators and about outputs, and the warning."""
    network = traced(nn.HybridLambda(make), (8, 6, 6))
    graph, dimensions = network.graph, network.dimensions
    found = joint_operators(graph, dimensions, splits_of(network, plan_of(network), RANKS), RANKS)
    return labelled(graph, found), whole_outputs(graph, dimensions), joint_warning(graph, found, RANKS)


def diagonals(F, x):
    return F.tanh(F.diag(x, axis1=1, axis2=2, name='diag'), name='tanh')


def test_operators_without_a_rule_and_what_follows_them():
    operators, outputs, warning = told(diagonals)
    whole = 'whole on every worker, 4 times the work of a shard each, from inputs of '
    lost = 'its samples are not known after diag, as there is no rule for diag'
    assert operators == {'diag': whole + '1.2 kB: there is no rule for diag', 'tanh': whole + '192 B: ' + lost}
    assert outputs == ['output 0 (tanh): whole on every worker: ' + lost]
    assert warning == ('parallelize: operators without a rule are computed for the joint batch of 4 workers, and so '
                       'are the operators after them until samples are known again: diag (diag); print(net) shows '
                       'where, and the cost')


def test_a_plan_that_lists_all_operators_says_it_too():
    operators, _, warning = told(
        diagonals, lambda network: explicit_plan(network, whole_splits(network.graph, [2]), RANKS))
    assert operators['diag'] == ('for the joint batch on worker 2 alone, from inputs of 1.2 kB, while others may wait: '
                                 'there is no rule for diag')
    assert 'diag (diag)' in warning


def test_operators_that_mix_samples():
    operators, outputs, warning = told(lambda F, x: F.reverse(x, axis=0, name='turned'))
    assert operators['turned'].endswith(': it mixes samples')
    assert outputs == ['output 0 (turned): whole on every worker: its samples are not known after turned, which mixes '
                       'them']
    assert warning == ''


def test_nothing_is_said_where_all_is_split():
    def forward(F, x):
        joint = F.concat(x, F.tanh(x), dim=0)
        return [F.mean(F.slice_axis(joint, axis=0, begin=at, end=at + 8), axis=(1, 2)) for at in (0, 8)]
    assert told(forward) == ({}, [], '')
    assert told(lambda F, x: F.concat(x, x, dim=0, name='both'))[1] == [
        'output 0 (both): all samples 2 times in a row; each worker returns its own samples of each time']


def test_known_again_behind_an_input_with_samples():
    operators, outputs, _ = told(lambda F, x: F.tanh(F.linalg_syrk(x, name='syrk') + x))
    assert list(operators) == ['syrk'] and outputs == []


def test_random_operators_without_a_rule_are_on_one_worker():
    operators, _, _ = told(lambda F, x: F.shuffle(x, name='mixed'))
    assert operators['mixed'].startswith('for the joint batch on worker 0 alone, which draws for all, from inputs of')


# -- norms ----------------------------------------------------------------------------------------------------------


def layer_norm(F, x, gamma, beta):
    centred = F.broadcast_sub(x, F.mean(x, axis=-1, keepdims=True))
    variance = F.mean(F.square(centred), axis=-1, keepdims=True)
    return F.broadcast_add(F.broadcast_mul(F.broadcast_mul(centred, F.rsqrt(variance + 1e-5)), gamma), beta)


def divided(F, x, gamma, beta):
    mean = F.expand_dims(F.mean(x, axis=2), axis=2)
    squares = F.mean(x * x, axis=-1, keepdims=True)
    root = F.sqrt(squares - mean * mean + 1e-5)
    return F.broadcast_add(F.broadcast_mul(gamma, F.broadcast_div(F.broadcast_sub(x, mean), root)), beta)


def root_mean_square(F, x, gamma, beta):
    return F.broadcast_mul(F.broadcast_mul(x, F.rsqrt(F.mean(x ** 2, axis=-1, keepdims=True) + 1e-5)), gamma)


def length(F, x, gamma, beta):
    return F.broadcast_div(x, F.norm(x, axis=-1, keepdims=True) + 1e-5)


def moments(F, x, gamma, beta):
    mean, variance = F.moments(x, axes=(2,), keepdims=True)
    return F.broadcast_mul(F.broadcast_sub(x, mean), (variance + 1e-5) ** -0.5)


def pooled(F, x, gamma, beta):
    return F.broadcast_add(F.mean(F.relu(x), axis=2), F.sum(gamma * beta))


def network_of(norm):
    """Return a network with a norm, and its splits over samples."""
    def call(F, x, first, gamma, beta):
        normed = norm(F, first(x), gamma, beta)
        return F.relu(normed), normed * 2

    net = Net(lambda: [nn.Dense(8, flatten=False, in_units=8)], call, gamma={'shape': (1, 1, 8)},
              beta={'shape': (1, 1, 8)})
    network = traced(initialised(net), (4, 6, 8))
    return network, splits_of(network, data_parallel(), 2)


@pytest.mark.parametrize('norm, count', [(layer_norm, 9), (divided, 12), (root_mean_square, 6), (length, 3),
                                         (moments, 5)], ids=lambda value: getattr(value, '__name__', value))
def test_a_norm_is_one_line(norm, count):
    network, splits = network_of(norm)
    lines = report_lines(network.graph, network.dimensions, splits)
    assert [line.kind for line in lines] == ['FullyConnected', 'norm of %d operators' % count, 'relu', '_mul_scalar']
    assert [operator for line in lines for operator in line.operators] == network.graph.computing


def test_other_reductions_have_lines_of_their_own():
    network, splits = network_of(pooled)
    lines = report_lines(network.graph, network.dimensions, splits)
    assert [line.operators for line in lines] == [[operator] for operator in network.graph.computing]


def test_a_norm_with_several_splits_has_several_lines():
    network, splits = network_of(layer_norm)
    last = next(operator for operator in network.graph.computing if network.graph.label(operator) == 'broadcast_add0')
    splits[last.number] = Split((1, 2, 1), (0, 1))
    lines = report_lines(network.graph, network.dimensions, splits)
    assert all(len(line.operators) == 1 for line in lines)


def test_tables_and_notes_have_one_line_for_a_norm():
    network, _ = network_of(layer_norm)
    shards = NetworkShards(network.graph, whole_splits(network.graph, range(2)))
    text = layout_table('a plan', network.dimensions, shards, [], 2, {})
    row, note = (line for line in text.split('\n') if 'mean0' in line)
    assert row.startswith('mean0 to broadcast_add0  norm of 9 operators  copies 2') and '64 B' in row  # gamma and beta
    assert note.startswith('mean0 to broadcast_add0: whole on every worker, 2 times the work of a shard each')
    assert sum(': whole on every worker' in line for line in text.split('\n')) == 4
