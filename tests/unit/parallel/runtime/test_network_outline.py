"""Networks are compared by place: names may differ, anything else is named."""
import json

import pytest
from mxnet.gluon import nn

from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.plan_json import from_json
from mxhybrid.parallel.plans.strategies import data_parallel
from mxhybrid.parallel.redistribution.outline import digest_of, first_difference
from mxhybrid.parallel.runtime.network_outline import outline_of
from mxhybrid.planner.automatic_plan import with_own_labels

from ....helpers.gluon_nets import initialised
from ....helpers.split_programs import explicit_plan, splits_of


def network(units=8, shape=(4, 6), **settings):
    """A network whose names depend on the blocks made before, and its parameters."""
    net = nn.HybridSequential()
    net.add(nn.Dense(units, in_units=shape[1], **settings), nn.Dense(2, in_units=units))
    return traced(initialised(net), shape), net.collect_params()


def outline(**settings):
    return outline_of('parallelize', *network(**settings))


def told(outlines):
    """Return outlines in the form that other workers receive."""
    return first_difference(json.loads(json.dumps(outlines)))


def test_names_may_differ():
    first, second = outline(), outline()
    assert [line.name for line in first] != [line.name for line in second]
    assert digest_of(first) == digest_of(second) and told([first, second]) is None


@pytest.mark.parametrize('settings, words', [
    ({'units': 16}, 'with shape [8, 6], worker 2 has parameter 0'), ({'activation': 'tanh'}, 'operator 4'),
    ({'shape': (8, 6)}, 'input (data) with shape [4, 6], worker 2 has input (data) with shape [8, 6]'),
    ({'use_bias': False}, 'parameter 1'), ({'flatten': False}, "attributes {'flatten': 'False'")],
    ids=lambda value: str(value)[:20])
def test_the_first_difference_is_named(settings, words):
    first, second = outline(), outline(**settings)
    assert digest_of(first) != digest_of(second)
    assert words in told([first, first, second]), told([first, first, second])


def test_an_outline_that_is_longer():
    first, longer = outline(), outline()
    longer.append(longer[-1])
    assert 'worker 0 has nothing more, worker 1 has outputs' in told([first, longer])


def test_a_plan_fits_the_network_with_other_names():
    (theirs, _), (ours, _) = network(), network()
    splits = splits_of(theirs, data_parallel(), 2)
    labels = [theirs.graph.label(one) for one in theirs.graph.operators]
    found = from_json(with_own_labels(explicit_plan(theirs, splits).as_json(), labels, ours.graph))
    assert splits_of(ours, found, 2) == splits
    assert with_own_labels(data_parallel().as_json(), labels, ours.graph) == {'plan': 'data_parallel'}
