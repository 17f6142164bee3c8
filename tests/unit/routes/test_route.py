"""The common context of the routes of a store."""
from types import SimpleNamespace

from mxhybrid.base.settings import Settings
from mxhybrid.routes.route import RouteContext


def test_keys_that_look_alike_are_told_apart():
    keys = [(3, '3'), ('3', '3'), (0, 'net_weight'), (1, 'net_weight'), ('0.net_weight', '0.net_weight'),
            ('any', 'any')]
    context = RouteContext(SimpleNamespace(), SimpleNamespace(), Settings(), 'hybrid0')
    tags = [context.tag(key, name) for key, name in keys]
    assert len({*tags, 'hybrid0.any'}) == len(keys) + 1  # which Distributed uses for itself
    assert tags[3] == 'hybrid0.1.net_weight'
