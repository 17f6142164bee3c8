"""Dense sums over hosts: right with uneven numbers of workers, and each host's link is crossed once, not per worker."""
import numpy as np
from lab.launchers import over_hosts

from ..parallel.tables import test_store_calls
from . import BODIES

BODY = BODIES / 'dense_bytes.py'
SUMS = test_store_calls.SUMS


def run(cluster, hosts, body, *args):
    return cluster.run(0, over_hosts(list(zip(('hosta', 'hostb'), hosts)), [body, *args]), body=body)


def test_sums_of_uneven_hosts(cluster):
    result = run(cluster, (3, 1), SUMS, '2').ok()
    for rank in range(4):
        np.testing.assert_array_equal(result.results[rank]['fractions'], result.results[0]['fractions'])


def test_a_leader_that_dies_among_sums_is_named(cluster):
    result = run(cluster, (2, 2), SUMS, '2', '2').failed()
    causes = [line.partition('ends, because ')[2] for line in result.output.splitlines() if 'ends, because' in line]
    assert causes
    # The server that it started goes with it, and may be noticed first.
    assert all(cause.startswith(('worker 2 (host hostb', 'a parameter server (host hostb')) for cause in causes), \
        result.output


def test_a_dense_array_crosses_a_link_once_per_host(cluster):
    before = [cluster.traffic(i) for i in range(2)]
    result = run(cluster, (3, 3), BODY).ok()
    payload = result.results[0]['payload']
    for i in range(2):
        received, sent = (after - start for after, start in zip(cluster.traffic(i), before[i]))
        # Each of the two hosts sends the half that the other host owns, and the sum of its own half.
        assert payload < sent < 1.2 * payload
        assert payload < received < 1.2 * payload
