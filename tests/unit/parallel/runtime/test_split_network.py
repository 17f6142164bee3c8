"""Plans that a network cannot follow are refused before any weight moves."""
from types import SimpleNamespace

import pytest
from mxnet import gluon
from mxnet.gluon import nn

from mxhybrid.base.errors import InputError
from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.strategies import layers
from mxhybrid.parallel.runtime.split_network import apply_plan


class TwoCalls(gluon.HybridBlock):
    """A network that calls its BatchNorm twice."""

    def __init__(self, **options):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.norm = nn.BatchNorm(in_channels=4, prefix='norm_', **options)

    def hybrid_forward(self, F, data):
        return self.norm(F.relu(self.norm(data)))


@pytest.mark.parametrize('use_global_stats', [False, True])
def test_calls_of_one_batch_norm_that_split_its_channels_differently_are_refused(use_global_stats):
    net = TwoCalls(use_global_stats=use_global_stats)
    net.initialize()
    workers = SimpleNamespace(size=2, rank=0)
    alike = layers({'norm_fwd': {'dimension1': 2}})
    assert apply_plan(workers, traced(net, (4, 4, 2, 2)), alike, False, 'joint').shards is not None
    apart = layers({'norm_fwd#2': {'dimension1': 2}})
    with pytest.raises(InputError, match='norm_fwd.*split the channels of all its calls alike'):
        apply_plan(workers, traced(net, (4, 4, 2, 2)), apart, False, 'joint')
