"""Networks of GluonCV, GluonNLP, GluonTS and Sockeye: split, they equal one process, and nothing is replicated.

``scripts/test --clients`` installs the packages and runs this.
"""
import fnmatch
import math
from pathlib import Path

import mxnet as mx
import pytest
from lab.jobs import run_job

from mxhybrid.parallel import megatron
from mxhybrid.parallel.ops.registry import has_rule
from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.runtime.network_shards import NetworkShards
from mxhybrid.parallel.sharding.box import size_of

from ..helpers.planned_networks import cluster, make_planner
from .networks import CLIENTS

BODY = Path(__file__).parent / 'body.py'
#: The largest difference, by type.
TOLERANCES = {'float64': 1e-10, 'float32': 1e-5}


def _unnamed(names, patterns):
    """Return the names that match no pattern."""
    return [name for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]


def _with_values(client):
    """Return the network with values."""
    net = client.build()
    net.cast(client.dtype)
    net.initialize(getattr(mx.init, client.initializer)())
    return net


@pytest.mark.parametrize('name', sorted(CLIENTS))
def test_equals_one_process(name):
    client = CLIENTS[name]
    result = run_job(BODY, 'horovodrun', args=[name], workers=2, timeout=280).ok()
    for rank in range(2):
        outcomes = result.results[rank]['outcomes']
        assert len(outcomes) == (2 if client.whole_weights is None else 3)
        for label, values in outcomes.items():
            named = client.mixing + (client.unsplit if label.endswith('split') else ())
            if not label.endswith('megatron'):  # which lets every worker compute what has small weights
                assert _unnamed([line.partition(': ')[0] for line in values['joint']], named) == [], label
            # A step changes weights by gradients; a deep network may multiply their rounding errors.
            assert values['first'] < TOLERANCES[client.dtype], (label, values)
            assert values['all'] < max(TOLERANCES[client.dtype], 10 * values['rounding']), (label, values)
            assert values['rounding'] < 100 * TOLERANCES[client.dtype], (label, values)


@pytest.mark.parametrize('name', sorted(CLIENTS))
def test_every_operator_has_a_rule_and_keeps_the_samples(name):
    client = CLIENTS[name]
    with mx.autograd.record():
        network = traced(_with_values(client), client.data, client.batch_axis, client.dtype)
    operators = network.graph.computing
    assert [operator.name for operator in operators if not has_rule(operator)] == []
    losers = [network.dimensions.loser((operator.number, 0)) for operator in operators]
    assert _unnamed([network.graph.label(loser) for loser in losers if loser is not None], client.mixing) == []


@pytest.mark.parametrize('name', [name for name in sorted(CLIENTS) if CLIENTS[name].whole_weights is not None])
def test_megatron_splits_the_weights(name):
    client = CLIENTS[name]
    network = traced(_with_values(client), client.shapes, client.batch_axis, client.dtype)
    shards = NetworkShards(network.graph, megatron(2).resolve(network.graph, network.dimensions, 2).splits)
    whole = [weight for weight, shape in network.graph.parameters.items() if len(shape) > 1
             and any(size_of(box) == math.prod(shape) for box in shards.weights.boxes(weight).values())]
    assert _unnamed(whole, client.whole_weights) == []


@pytest.mark.parametrize('name', sorted(CLIENTS))
def test_is_planned(name):
    client = CLIENTS[name]
    with mx.autograd.record():
        planner = make_planner(cluster(2), _with_values(client), client.data, batch_axis=client.batch_axis,
                               dtype=client.dtype)
    best = planner.search(None, 20)
    assert set(planner.splits(best.plan)) == {operator.number for operator in planner.graph.computing}
