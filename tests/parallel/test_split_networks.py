"""Drawn networks with drawn splits over 2 and 4 ranks: outputs and gradients are those of the whole network."""
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from mxhybrid.parallel.graph import Graph

from ..helpers.split_networks import Layers, Ranks, drawn_splits, run_whole, weights_of


@pytest.fixture(scope='module', params=[2, 4], ids='{} ranks'.format)
def ranks(request):
    made = Ranks(request.param)
    yield made
    made.close()


def compare(ranks, symbol, data, weights, draw):
    """Split all operators as is drawn, and compare with the whole."""
    graph = Graph(symbol, {name: array.shape for name, array in data.items()},
                  {name: array.dtype for name, array in {**data, **weights}.items()})
    whole, whole_gradients = run_whole(symbol, data, weights)
    found, gradients, _ = ranks.run(symbol, data, weights, drawn_splits(draw, graph, ranks.count))
    for one, other in zip(found, whole):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)
    for name, gradient in whole_gradients.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-9, atol=1e-9, err_msg=name)


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(drawn=st.data())
def test_networks_of_images(ranks, drawn):
    samples = drawn.draw(st.integers(1, 5))
    layers = Layers(drawn.draw, samples, drawn.draw(st.integers(1, 4)), drawn.draw(st.integers(3, 9)))
    data = {'data': np.random.RandomState(0).uniform(-1, 1, layers.first)}
    compare(ranks, layers.symbol, data, weights_of(layers.symbol, data, 1), drawn.draw)
