"""``mxhybrid calibrate`` finds the rate, and the burst after idle times, that emulated links have."""
import os

import pytest
from lab.cluster import EmulatedCluster
from lab.launchers import over_hosts

from mxhybrid.planner.calibration.cost_fitting import transfer_seconds
from mxhybrid.planner.cluster.cluster_spec import load

#: The part of the bytes on an emulated link, which include headers, that is the payload of redistributions.
PAYLOAD = 0.957
#: The burst of every emulated link, in bytes (lab.emulation).
BURST = 81920

pytestmark = pytest.mark.alone


def test_rate_and_burst_of_two_hosts(tmp_path):
    path = tmp_path / 'cluster.json'
    with EmulatedCluster(hosts=2, mbit_per_s=100) as cluster:
        output = cluster.run(0, over_hosts([('hosta', 1), ('hostb', 1)], ['-m', 'mxhybrid', 'calibrate', path]),
                             timeout=250).ok().output
    measured = load(str(path))
    assert [(host.name, host.ranks) for host in measured.hosts] == [('hosta', 1), ('hostb', 1)]
    assert measured.link.rate == pytest.approx(PAYLOAD * 100e6 / 8, rel=0.1)
    # A delay on a busy machine comes off the burst, a tenth of it for 0.6 ms.  Without a burst, the first
    # transfer would take 6.5 ms longer.
    assert 0.5 * PAYLOAD * BURST < measured.link.burst < 1.1 * PAYLOAD * BURST
    for size, error_s in ((1 << 18, 0.003), (1 << 20, 0.008)):
        expected_s = (size - PAYLOAD * BURST) / (PAYLOAD * 100e6 / 8)
        assert transfer_seconds(measured.link, measured.link_latency_s, size) == pytest.approx(expected_s, abs=error_s)
    assert measured.link.peak > 2 * measured.link.rate and 0 <= measured.link_latency_s < 0.01
    # Each has half of this machine.  Emulated hosts do not see their control groups, so that of the cores only those
    # count which a rank gets: fewer beside other programs.
    first, second = measured.hosts
    assert first.memory_bytes == second.memory_bytes
    assert all(0 < host.cores <= os.cpu_count() / 2 for host in measured.hosts)
    assert 'transfers of all ranks at the same time' in output
