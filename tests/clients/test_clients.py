"""Networks of GluonCV, GluonNLP and Sockeye: split, they equal one process, and nothing is replicated.

``scripts/test --clients`` installs the packages and runs this.
"""
from pathlib import Path

import mxnet as mx
import pytest
from lab.jobs import run_job

from mxhybrid.parallel.ops.registry import has_rule
from mxhybrid.parallel.ops.tracing import traced

from .networks import CLIENTS

BODY = Path(__file__).parent / 'body.py'
#: Outputs and weights after some steps, by type.
TOLERANCES = {'float64': 1e-10, 'float32': 1e-4}


@pytest.mark.parametrize('name', sorted(name for name, client in CLIENTS.items() if client.is_compared))
def test_equals_one_process(name):
    result = run_job(BODY, 'horovodrun', args=[name], workers=2, timeout=280).ok()
    for rank in range(2):
        found = result.results[rank]['found']
        assert len(found) == 2
        for label, values in found.items():
            assert values['joint'] == [], label
            assert max(values['outputs'], values['weights']) < TOLERANCES[CLIENTS[name].dtype], (label, values)


@pytest.mark.parametrize('name', sorted(CLIENTS))
def test_every_operator_has_a_rule_and_keeps_the_samples(name):
    client = CLIENTS[name]
    net = client.build()
    net.cast(client.dtype)
    net.initialize(mx.init.Xavier())
    with mx.autograd.train_mode() if client.trains else mx.autograd.predict_mode():
        network = traced(net, client.shapes if len(client.shapes) > 1 else client.shapes[0], client.batch_axis,
                         client.dtype)
    operators = network.graph.computing
    assert [one.name for one in operators if not has_rule(one)] == []
    assert [one.name for one in operators if network.dimensions.loser((one.number, 0)) is not None] == []
