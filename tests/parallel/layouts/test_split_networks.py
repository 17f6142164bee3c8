"""Random networks, split at random over 2 and 4 ranks: outputs and gradients equal those of the whole network."""
import os
import signal

import mxnet as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from mxhybrid.parallel.sharding.split import Split

from ...helpers import split_networks
from ...helpers.operator_cases import OPERATORS
from ...helpers.operator_networks import SINGLE
from ...helpers.split_networks import (
    Layers,
    Network,
    assert_equal_to_whole,
    drawn_splits,
    run_whole,
    weights_of,
)


@pytest.fixture(scope='module')
def four(ranks_of):
    return ranks_of(4)


def network_of(symbol, seed=0, low=-1, axes=None, **shapes):
    """Return a network with drawn data and weights."""
    rng = np.random.RandomState(seed)
    data = {name: rng.uniform(low, low + 2, shape) for name, shape in shapes.items()}
    return Network(symbol, data, weights_of(symbol, data, 1), axes or dict.fromkeys(data, 0))


def compare(ranks, network, draw, tolerance=1e-10):
    """Split all operators as is drawn, and compare with the whole."""
    graph, _ = network.graph()
    outcome = ranks.run(*network[:3], drawn_splits(draw, graph, ranks.count), axes=network.axes)
    assert_equal_to_whole(outcome, run_whole(*network[:3]), tolerance)


@pytest.mark.parametrize('count', [2, 4])
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(drawn=st.data())
def test_networks_of_images(ranks_of, count, drawn):
    samples = drawn.draw(st.integers(1, 5))
    layers = Layers(drawn.draw, samples, drawn.draw(st.integers(1, 4)), drawn.draw(st.integers(3, 9)))
    compare(ranks_of(count), network_of(layers.symbol, data=layers.first), drawn.draw)


def test_ranks_that_take_too_long_are_started_anew(four, monkeypatch):
    symbol = mx.sym.FullyConnected(mx.sym.var('data', dtype='float64'), num_hidden=3, name='dense')
    network, other = network_of(symbol, data=(4, 2)), network_of(symbol, 1, data=(5, 2))
    splits = {one.number: Split([4, 1], [0, 1, 2, 3]) for one in network.graph()[0].computing}
    os.kill(four._processes[0].pid, signal.SIGSTOP)
    monkeypatch.setattr(split_networks, 'ANSWER_S', 0.1)
    with pytest.raises(AssertionError, match='rank 0'):
        four.run(*network[:3], splits)
    monkeypatch.undo()
    assert_equal_to_whole(four.run(*other[:3], splits), run_whole(*other[:3]), 1e-12)


def test_data_read_for_its_shape_has_zero_gradient(four):
    symbol = mx.sym.slice_like(mx.sym.tanh(mx.sym.var('data')), mx.sym.var('like'))
    network = network_of(symbol, data=(4, 3), like=(4, 2))
    splits = {operator.number: Split([4, 1], [0, 1, 2, 3]) for operator in network.graph()[0].computing}
    found, whole = four.run(*network[:3], splits), run_whole(*network[:3])
    assert_equal_to_whole(found, whole, 1e-13)
    assert sorted(found[1]) == sorted(whole[1]) == ['data', 'like']
    np.testing.assert_array_equal(found[1]['like'], np.zeros((4, 2)))


@settings(max_examples=15, suppress_health_check=list(HealthCheck), database=None)
@given(drawn=st.data())
def test_a_mask_for_whole_dimensions_is_one(four, drawn):
    axes = drawn.draw(st.sets(st.integers(0, 2), min_size=1))
    symbol = mx.sym.Dropout(mx.sym.var('data'), p=0.5, axes=tuple(axes))
    network = network_of(symbol, low=1, data=(4, 6, 4))
    outputs, _, _ = four.run(*network[:3], drawn_splits(drawn.draw, network.graph()[0], 4))
    mask = outputs[0] / network.data['data']
    for axis in axes:
        np.testing.assert_allclose(mask, np.broadcast_to(mask.take([0], axis=axis), mask.shape))


@pytest.mark.parametrize('name', sorted(OPERATORS))
def test_operators(four, name):
    build, inputs, *axes = OPERATORS[name]
    names = ['data%d' % at for at in range(len(inputs))]
    rng = np.random.RandomState(0)
    data = {one: make(rng, shape) for one, (make, shape) in zip(names, inputs)}
    symbol = build(*[mx.sym.var(one) for one in names])
    network = Network(symbol, data, weights_of(symbol, data, 1), dict(zip(names, *axes or [[0] * len(names)])))

    # MXNet computes learned slopes as float32.
    tolerance = 1e-6 if name == 'learned slopes' else 1e-10
    if any(make is SINGLE for make, _ in inputs) or name == 'attention of joint weights':
        tolerance = 1e-5  # the products of attention take float32 alone

    @settings(max_examples=12, suppress_health_check=list(HealthCheck), database=None)
    @given(drawn=st.data())
    def look(drawn):
        compare(four, network, drawn.draw, tolerance)
    look()
