"""The shards of all operators of a network, and those of a single operator."""
import pytest

from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.strategies import data_parallel, grid
from mxhybrid.parallel.runtime.network_shards import NetworkShards, layout_by_split
from tests.helpers.planned_networks import network


@pytest.mark.parametrize('plan', [data_parallel(), grid(model=2, batch=2), grid(domain=(2,), model=2)],
                         ids=['data', 'model', 'height'])
def test_layout_of_an_output_needs_no_other_operators(plan):
    traced_net = traced(network(), (8, 3, 8, 8), 0, 'float32')
    shards = NetworkShards(traced_net.graph, plan.resolve(traced_net.graph, traced_net.dimensions, 4).splits)
    for operator in traced_net.graph.computing:
        for output in range(operator.outputs):
            layout, expected = (layout_by_split(traced_net.graph, operator, output, shards.splits[operator.number]),
                                shards.layout(operator, output))
            assert (layout.shape, layout.boxes, layout.partial) == (expected.shape, expected.boxes, expected.partial)
