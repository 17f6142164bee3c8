"""Redistributions have numbers of their own, and share no array with an input or output of their graph."""
import json
from types import SimpleNamespace

import mxnet as mx
import pytest

from mxhybrid.base.errors import InputError
from mxhybrid.parallel.ops.graph import Graph
from mxhybrid.parallel.redistribution.redistribution_operator import RedistributionOperator
from mxhybrid.parallel.runtime.parallel_block import another_program
from mxhybrid.parallel.runtime.rank_program import Program
from mxhybrid.parallel.sharding.split import Split

from ....helpers.split_programs import program_spec

SHAPE = 4, 16, 12, 10
CONVOLUTION = {'kernel': (3, 3), 'pad': (1, 1), 'num_filter': 16, 'no_bias': True}


def convolved(data, name):
    return mx.sym.Convolution(data, name=name, **CONVOLUTION)


def residual(x):
    between = convolved(x, 'first')
    return between + convolved(between, 'second')


BUILDERS = {'chain': lambda x: convolved(convolved(x, 'first'), 'second'), 'residual': residual,
            'sum of the data': lambda x: convolved(x + mx.sym.BlockGrad(x), 'first'),
            'sum of sums': lambda x: convolved(mx.sym.sin(x) + (x + mx.sym.cos(x)), 'first'),
            'pool': lambda x: mx.sym.Pooling(convolved(x, 'first'), kernel=(3, 3), pad=(1, 1), pool_type='max')}


class StandIn:
    """An operator in place of a compiled redistribution, of which the graph alone is looked at."""

    def __init__(self, redistribution):
        self._has_output = redistribution.target is not None

    def in_graph(self, *inputs, name):
        joined = mx.sym.concat(*inputs, dim=0, name=name)
        return mx.sym.SliceChannel(joined, num_outputs=2) if self._has_output else joined


class Transport:
    """Makes every redistribution a compiled one."""

    def operator(self, redistribution):
        return StandIn(redistribution)

    def forget(self, transfers):
        pass


def split_of(operator):
    """Return a split by height of operators with windows, and one by samples of the others, like the data."""
    return Split((1, 1, 2, 1) if operator.op in ('Convolution', 'Pooling') else (2, 1, 1, 1), (0, 1))


def program_of(build, rank, flows):
    graph = Graph(build(mx.sym.var('data', shape=SHAPE, dtype='float32')), {'data': SHAPE}, {'data': 'float32'})
    spec = program_spec(graph, {operator.number: split_of(operator) for operator in graph.computing}, 2, rank,
                        gradient_inputs={'data'} if flows else ())
    return Program(spec, rank, lambda redistribution, differentiable: RedistributionOperator(
        redistribution, Transport(), differentiable, lambda error: None), 0)


class Nodes:
    """The operators of a graph, as MXNet describes them."""

    def __init__(self, symbol):
        described = json.loads(symbol.tojson())
        self.nodes, self.heads = described['nodes'], [number for number, *_ in described['heads']]

    def op(self, number):
        return self.nodes[number]['op']

    def inputs(self, number):
        return [source for source, *_ in self.nodes[number]['inputs']]

    def with_one_gradient(self, number):
        """Yield the operators whose outputs have the gradient array of this one's output: terms of a sum."""
        yield number
        if self.op(number) in ('elemwise_add', '_plus', '_Plus'):
            for source in self.inputs(number):
                yield from self.with_one_gradient(source)


@pytest.mark.parametrize('flows', [False, True], ids=['data without gradient', 'data with gradient'])
@pytest.mark.parametrize('name', sorted(BUILDERS))
@pytest.mark.parametrize('rank', range(2))
def test_no_input_or_output_of_the_graph(name, flows, rank):
    """MXNet frees a converted copy of an operator's array, or of its gradient, too early if it is one."""
    nodes = Nodes(program_of(BUILDERS[name], rank, flows).symbol)
    redistributions = {number for number, node in enumerate(nodes.nodes)
                 if node['op'] == 'Concat' and node['name'].startswith('redistribution')}
    outputs = redistributions | {number for number in range(len(nodes.nodes))
                           if nodes.op(number) == 'SliceChannel' and set(nodes.inputs(number)) & redistributions}
    assert redistributions
    for redistribution in redistributions:
        for source in nodes.inputs(redistribution):
            assert not [number for number in nodes.with_one_gradient(source) if nodes.op(number) == 'null']
    for head in nodes.heads:
        assert not set(nodes.with_one_gradient(head)) & outputs


def programs_of(redistributions):
    """Return programs by whether they train, with numbers of redistributions."""
    return {True: SimpleNamespace(redistributions=range(redistributions)),
            False: SimpleNamespace(redistributions=range(redistributions - 1))}


@pytest.mark.parametrize('redistributions', [1, 7, 300])
def test_programs_share_no_number(redistributions):
    programs, first, taken = programs_of(redistributions), 3 << 20, []

    def make(training, number):
        taken.append(set(range(number, number + len(programs[training].redistributions))))
    for count in range(1, 50):
        for training in (True, False):
            another_program(make, programs, first, training, count)
    assert sum(map(len, taken)) == len(set().union(*taken))
    # The first programs begin with an eighth of the numbers each, and weights have the second half.
    assert min(set().union(*taken)) >= first + (1 << 18) and max(set().union(*taken)) < first + (1 << 19)


def test_numbers_depend_on_the_network_and_the_call_alone():
    numbers = []
    for _ in range(2):
        another_program(lambda training, number: numbers.append(number), programs_of(3), 5, True, 2)
    assert numbers[0] == numbers[1]


def test_too_many_calls_are_refused():
    with pytest.raises(InputError, match='run backward before more calls'):
        another_program(lambda training, number: None, programs_of(300), 0, True, 1 << 10)
