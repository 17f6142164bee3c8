"""Layers split over workers of two hosts: redistributions cross the connection of the hosts' servers, or Python's
sockets.
"""
import json

import pytest
from lab.launchers import over_hosts

from ..helpers.turns import slow
from ..parallel.layouts.test_layouts import BODY, CHANNELS, TRICK, check, grid


@pytest.mark.parametrize('transport, hosts', [('lane', (3, 1)), slow('lane', (2, 2)), ('ps-lite', (2, 2)),
                                         slow('ps-lite', (3, 1))])
def test_a_network_over_two_hosts(cluster, transport, hosts):
    plans = [TRICK, grid(2, 2), grid(domain=(4,)), CHANNELS, 1]
    result = cluster.run(0, over_hosts(list(zip(('hosta', 'hostb'), hosts)),
                                       [BODY, json.dumps({'cnn': {'net': 'cnn', 'plans': plans}})]), body=BODY,
                         env={'MXHYBRID_ROW_TRANSPORT': transport}).ok()
    check([result.results[rank]['outcomes']['cnn'] for rank in range(4)], plans)
