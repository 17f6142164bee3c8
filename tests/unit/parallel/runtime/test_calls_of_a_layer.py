"""Two calls of a layer are two operators of one name, and nothing that is kept for one is used for the other."""
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn

from mxhybrid.parallel.ops.registry import collectives
from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.strategies import grid
from mxhybrid.parallel.runtime.input_shards import InputShards
from mxhybrid.parallel.runtime.layout_table import layout_table
from mxhybrid.parallel.runtime.network_shards import NetworkShards
from mxhybrid.parallel.runtime.rank_program import ProgramSpec
from mxhybrid.planner.profiling.local_program import local_program
from mxhybrid.planner.profiling.profile_key import ProfileKeys
from mxhybrid.planner.profiling.timer import ProgramTimer


class Shared(gluon.HybridBlock):
    """A convolution and a BatchNorm on images of two sizes, put together at the end."""

    def __init__(self):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.conv, self.norm = nn.Conv2D(4, 3, padding=1, in_channels=3), nn.BatchNorm(in_channels=4)

    def hybrid_forward(self, F, first, second):
        outputs = [F.Flatten(self.norm(self.conv(data))) for data in (first, second)]
        return F.concat(*outputs, dim=1)


class Added(gluon.HybridBlock):
    """Two outputs of one layer are read by one operator."""

    def __init__(self):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.dense = nn.Dense(6, in_units=5)

    def hybrid_forward(self, F, first, second):
        return F.elemwise_sub(self.dense(first), self.dense(second))


def shared(ranks=2, dtype='float32'):
    """The network, its parts by height, and each rank's program without redistributions."""
    net = Shared()
    net.cast(dtype)
    net.initialize()
    network = traced(net, [(2, 3, 12, 5), (2, 3, 7, 4)], dtype=dtype)
    shards = NetworkShards(network.graph,
                           grid(domain=(ranks,)).resolve(network.graph, network.dimensions, ranks).splits)
    input_shards = InputShards(network.graph, network.axes, network.dimensions, ranks, 0, set())
    spec = ProgramSpec(shards, input_shards.inputs, input_shards.outputs, collectives())
    return network, shards, local_program(spec, 0)


def test_inputs_of_an_operator_have_its_number():
    network, _, program = shared(dtype='float64')  # a BatchNorm of float32 has no constants
    numbers = [one.number for one in network.graph.computing if one.op == 'BatchNorm']
    constants = {name for name in program.inputs if '_of_' in name and 'next' not in name}
    assert len(numbers) == 2 and constants
    assert all(any(name.endswith('_of_%d' % number) for name in constants) for number in numbers)
    assert ProgramTimer(program).time_once().total > 0


def test_the_table_has_bytes_of_each_call():
    """The two operators have one name."""

    class Redistribution:
        def __init__(self, operator, sent):
            self.operator, self.label, self.bytes = operator, 'net_conv0_fwd', (sent, 0)
    network, shards, _ = shared()
    numbers = [one.number for one in network.graph.computing if one.op == 'Convolution']
    table = layout_table('a plan', network.dimensions, shards,
                         [Redistribution(number, 1000 * at) for at, number in enumerate(numbers, 1)], 2, {})
    lines = {line.split()[0]: line.split()[-2:] for line in table.split('\n') if 'conv0' in line}
    assert lines == {'conv0_fwd': ['1.0', 'kB'], 'conv0_fwd#2': ['2.0', 'kB']}


def test_an_operator_that_reads_both_has_two_inputs():
    net = Added()
    net.initialize()
    network = traced(net, [(4, 5), (4, 5)])
    (one,) = [one for one in network.graph.computing if one.op == 'elemwise_sub']
    shards = NetworkShards(network.graph, grid(batch=1).resolve(network.graph, network.dimensions, 1).splits)
    program = ProfileKeys(network.graph, collectives()).program(one, shards.output_shards[one.number][0])
    assert len(program.inputs) == 2 and set(program.inputs) == set(program.symbol.list_inputs())
    mx.nd.waitall()
