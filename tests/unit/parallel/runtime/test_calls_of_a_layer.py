"""Two calls of a layer are two operators of one name, and nothing that is kept for one is used for the other."""
from types import SimpleNamespace

import mxnet as mx
from mxnet.gluon import nn

from mxhybrid.parallel.ops.registry import collectives
from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.strategies import grid
from mxhybrid.parallel.runtime.layout_table import layout_table
from mxhybrid.planner.profiling.local_program import local_program
from mxhybrid.planner.profiling.profile_key import ProfileKeys
from mxhybrid.planner.profiling.timer import ProgramTimer

from ....helpers.gluon_nets import Net, initialised
from ....helpers.split_programs import program_spec, splits_of


def shared(dtype='float32'):
    """Return a network that calls a convolution and a BatchNorm on images of two sizes, and its programs by height."""
    net = Net(lambda: [nn.Conv2D(4, 3, padding=1, in_channels=3), nn.BatchNorm(in_channels=4)],
              lambda F, first, second, conv, norm: F.concat(*[F.Flatten(norm(conv(data))) for data in (first, second)]))
    network = traced(initialised(net, dtype=dtype), [(2, 3, 12, 5), (2, 3, 7, 4)], dtype=dtype)
    return network, program_spec(network.graph, splits_of(network, grid(domain=(2,)), 2), 2)


def test_inputs_of_an_operator_have_its_number():
    network, spec = shared('float64')  # a BatchNorm of float32 has no constants
    program = local_program(spec, 0)
    numbers = [one.number for one in network.graph.computing if one.op == 'BatchNorm']
    constants = {name for name in program.inputs if '_of_' in name and 'next' not in name}
    assert len(numbers) == 2 and constants
    assert all(any(name.endswith('_of_%d' % number) for name in constants) for number in numbers)
    assert ProgramTimer(program).time_once().total > 0


def test_the_table_has_bytes_of_each_call():
    """The two operators have one name."""
    network, spec = shared()
    numbers = [one.number for one in network.graph.computing if one.op == 'Convolution']
    redistributions = [SimpleNamespace(operator=number, label='net_conv0_fwd', bytes=(1000 * at, 0))
                       for at, number in enumerate(numbers, 1)]
    table = layout_table('a plan', network.dimensions, spec.shards, redistributions, 2, {})
    lines = {line.split()[0]: line.split()[-2:] for line in table.split('\n') if 'conv0' in line}
    assert lines == {'conv0_fwd': ['1.0', 'kB'], 'conv0_fwd#2': ['2.0', 'kB']}


def test_an_operator_that_reads_both_has_two_inputs():
    net = Net(lambda: [nn.Dense(6, in_units=5)],
              lambda F, first, second, dense: F.elemwise_sub(dense(first), dense(second)))
    network = traced(initialised(net), [(4, 5), (4, 5)])
    (one,) = [one for one in network.graph.computing if one.op == 'elemwise_sub']
    shards = program_spec(network.graph, splits_of(network, grid(batch=1), 1), 1).shards
    program = ProfileKeys(network.graph, collectives()).program(one, shards.output_shards[one.number][0])
    assert len(program.inputs) == 2 and set(program.inputs) == set(program.symbol.list_inputs())
    mx.nd.waitall()
