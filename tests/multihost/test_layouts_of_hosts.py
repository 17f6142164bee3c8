"""Layers split over workers of two hosts: exchanges cross the connection of the hosts' servers, or Python's sockets."""
import json

import pytest
from lab.launchers import over_hosts

from ..parallel.test_layouts import BODY, CHANNELS, TRICK, check, grid


@pytest.mark.parametrize('hosts', [(2, 2), (3, 1)], ids=str)
@pytest.mark.parametrize('env', [{}, {'MXHYBRID_WIRE': 'ps-lite'}], ids=['lane', 'sockets'])
def test_a_network_over_two_hosts(cluster, hosts, env):
    plans = [TRICK, grid(2, 2), grid(domain=(4,)), CHANNELS, 1]
    result = cluster.run(0, over_hosts(list(zip(('hosta', 'hostb'), hosts)),
                                       [BODY, json.dumps({'net': 'cnn', 'plans': plans})]), body=BODY, env=env).ok()
    check([result.results[rank] for rank in range(4)], plans)
