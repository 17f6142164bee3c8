"""The report names operators that are computed for the joint batch, with workers, reason and cost, for any plan."""
from mxnet.gluon import nn

from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.strategies import data_parallel
from mxhybrid.parallel.runtime.joint_work import joint_operators, joint_warning, whole_outputs

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
