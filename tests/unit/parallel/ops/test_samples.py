"""Rules know the sample axis of every output, or workers have the output whole; equal lengths do not mislead them."""
import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.runtime.input_shards import InputShards
from mxhybrid.parallel.sharding.box import full, slices_in

from ....helpers.sampled_networks import CALLS, CASES, WHOLE, expected, inputs_of, listed


@pytest.mark.parametrize('name, axes', CALLS, ids=lambda value: str(value))
def test_each_worker_gets_its_samples_or_all(name, axes):
    case = CASES[name]
    values = inputs_of(case)
    network = traced(nn.HybridLambda(case.forward), list(case.shapes), list(axes), case.dtype)
    whole = [one.asnumpy() for one in listed(case.forward(mx.nd, *[
        mx.nd.array(array, dtype=case.dtype) for array in values]))]
    for ranks in (2, 3):
        for rank in range(ranks):
            input_shards = InputShards(network.graph, network.axes, network.dimensions, ranks, rank, set())
            wanted = expected(case, axes, values, input_shards.samples)
            for entry, kind, array, mine in zip(network.graph.heads, case.outputs[axes], whole, wanted):
                array = array.reshape(network.graph.shapes[entry])  # boxes have a range for each factor of a dimension
                boxes = [boxes[rank] for boxes in input_shards.outputs[entry]]
                assert (boxes == [full(array.shape)]) == (kind == WHOLE)
                pieces = [array[slices_in(box, full(array.shape))] for box in boxes]
                along = next((at for at in range(array.ndim) if len(boxes) > 1 and boxes[0][at] != boxes[1][at]), 0)
                joined = np.concatenate(pieces, along) if array.ndim else array
                np.testing.assert_allclose(joined.reshape(mine.shape), mine, rtol=1e-6)
