"""Random networks, split at random over 2 and 4 ranks: outputs and gradients equal those of the whole network."""
import mxnet as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from mxhybrid.parallel.ops.graph import Graph
from mxhybrid.parallel.ops.tracing import dimensions_of
from mxhybrid.parallel.sharding.split import Split

from ...helpers import split_networks
from ...helpers.operator_cases import OPERATORS
from ...helpers.operator_networks import SINGLE
from ...helpers.split_networks import Layers, Ranks, drawn_splits, run_whole, weights_of


@pytest.fixture(scope='module', params=[2, 4], ids='{} ranks'.format)
def ranks(request):
    made = Ranks(request.param)
    yield made
    made.close()


@pytest.fixture(scope='module')
def four():
    made = Ranks(4)
    yield made
    made.close()


def compare(ranks, symbol, data, weights, draw, tolerance=1e-10, axes=None):
    """Split all operators as is drawn, and compare with the whole."""
    graph = Graph(symbol, {name: array.shape for name, array in data.items()},
                  {name: array.dtype for name, array in {**data, **weights}.items()})
    dimensions_of(graph, axes or dict.fromkeys(data, 0))  # gives it the factors of dimensions that contain heads
    whole, whole_gradients = run_whole(symbol, data, weights)
    found, gradients, _ = ranks.run(symbol, data, weights, drawn_splits(draw, graph, ranks.count), axes=axes)
    for one, other in zip(found, whole):
        np.testing.assert_allclose(one.reshape(other.shape), other, rtol=tolerance, atol=tolerance)
    for name, gradient in whole_gradients.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=10 * tolerance, atol=10 * tolerance, err_msg=name)


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(drawn=st.data())
def test_networks_of_images(ranks, drawn):
    samples = drawn.draw(st.integers(1, 5))
    layers = Layers(drawn.draw, samples, drawn.draw(st.integers(1, 4)), drawn.draw(st.integers(3, 9)))
    data = {'data': np.random.RandomState(0).uniform(-1, 1, layers.first)}
    compare(ranks, layers.symbol, data, weights_of(layers.symbol, data, 1), drawn.draw)


def test_ranks_that_take_too_long_are_started_anew(four, monkeypatch):
    symbol = mx.sym.FullyConnected(mx.sym.var('data', dtype='float64'), num_hidden=3, name='dense')
    data = {'data': np.random.RandomState(0).uniform(-1, 1, (4, 2))}
    other = {'data': np.random.RandomState(1).uniform(-1, 1, (5, 2))}
    graph = Graph(symbol, {'data': (4, 2)}, {'data': 'float64'})
    splits = {one.number: Split([4, 1], [0, 1, 2, 3]) for one in graph.computing}
    monkeypatch.setattr(split_networks, 'ANSWER_S', 0.0)
    with pytest.raises(AssertionError, match='rank 0'):
        four.run(symbol, data, weights_of(symbol, data, 1), splits)
    monkeypatch.undo()
    weights = weights_of(symbol, other, 2)
    found, _, _ = four.run(symbol, other, weights, splits)
    whole, _ = run_whole(symbol, other, weights)
    np.testing.assert_allclose(found[0], whole[0], rtol=1e-12)


def test_data_read_for_its_shape_has_zero_gradient(four):
    symbol = mx.sym.slice_like(mx.sym.tanh(mx.sym.var('data')), mx.sym.var('like'))
    data = {name: np.random.RandomState(0).uniform(-1, 1, shape) for name, shape in
            (('data', (4, 3)), ('like', (4, 2)))}
    graph = Graph(symbol, {name: array.shape for name, array in data.items()}, dict.fromkeys(data, 'float64'))
    splits = {operator.number: Split([4, 1], [0, 1, 2, 3]) for operator in graph.computing}
    whole, whole_gradients = run_whole(symbol, data, {})
    outputs, gradients, _ = four.run(symbol, data, {}, splits)
    np.testing.assert_allclose(outputs[0], whole[0], rtol=1e-12)
    assert sorted(gradients) == sorted(whole_gradients) == ['data', 'like']
    np.testing.assert_allclose(gradients['data'], whole_gradients['data'], rtol=1e-12)
    np.testing.assert_array_equal(gradients['like'], np.zeros((4, 2)))


@settings(max_examples=15, suppress_health_check=list(HealthCheck), database=None)
@given(drawn=st.data())
def test_a_mask_for_whole_dimensions_is_one(four, drawn):
    axes = drawn.draw(st.sets(st.integers(0, 2), min_size=1))
    symbol = mx.sym.Dropout(mx.sym.var('data'), p=0.5, axes=tuple(axes))
    data = {'data': np.random.RandomState(0).uniform(1, 2, (4, 6, 4))}
    graph = Graph(symbol, {'data': (4, 6, 4)}, {'data': 'float64'})
    outputs, _, _ = four.run(symbol, data, {}, drawn_splits(drawn.draw, graph, 4))
    mask = outputs[0] / data['data']
    for axis in axes:
        np.testing.assert_allclose(mask, np.broadcast_to(mask.take([0], axis=axis), mask.shape))


@pytest.mark.parametrize('name', sorted(OPERATORS))
def test_operators(four, name):
    build, inputs, *axes = OPERATORS[name]
    names = ['data%d' % at for at in range(len(inputs))]
    rng = np.random.RandomState(0)
    data = {one: make(rng, shape) for one, (make, shape) in zip(names, inputs)}
    symbol = build(*[mx.sym.var(one) for one in names])
    axes = dict(zip(names, axes[0])) if axes else None
    weights = weights_of(symbol, data, 1)

    # MXNet computes learned slopes as float32.
    tolerance = 1e-6 if name == 'learned slopes' else 1e-10
    if any(make is SINGLE for make, _ in inputs) or name == 'attention of joint weights':
        tolerance = 1e-5  # the products of attention take float32 alone

    @settings(max_examples=12, suppress_health_check=list(HealthCheck), database=None)
    @given(drawn=st.data())
    def look(drawn):
        compare(four, symbol, data, weights, drawn.draw, tolerance, axes)
    look()
