"""Bytes on links: dense sums and rows of a host's workers cross its link once, and counters say so."""
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


ROWS_BODY = BODIES / 'bytes.py'


def traffic_of_rows(cluster, wire):
    """Bytes received and sent by each host, and the output of worker 0, on the first host."""
    before = [cluster.traffic(i) for i in range(2)]
    env = {'MXHYBRID_ROW_TRANSPORT': wire, 'MXHYBRID_ROUTES': 'servers'}
    result = cluster.run(0, over_hosts([('hosta', 3), ('hostb', 3)], [ROWS_BODY]), env=env, body=ROWS_BODY).ok()
    moved = [[after - early for after, early in zip(cluster.traffic(i), before[i])] for i in range(2)]
    return moved, result.results[0]


def test_a_host_sends_each_row_once_and_counts_it(cluster):
    merged, said = traffic_of_rows(cluster, 'lane')
    apart, by_ps_lite = traffic_of_rows(cluster, 'ps-lite')
    payload = said['payload']
    # Half of the rows live on the other host. A host pushes that half and answers the other host's pulls.
    assert payload < max(sent for _, sent in merged) < 1.25 * payload
    assert max(sent for _, sent in apart) > 2.5 * payload
    # The rest of the bytes are headers and acknowledgements of TCP, and the start and end of the job.
    (received, sent), network = merged[0], said['network']
    assert 0.85 * sent < sum(ways['sent'] for ways in network.values()) < sent
    assert 0.85 * received < sum(ways['received'] for ways in network.values()) < received
    assert 'between this host' in said['table'] and 'pull response' in said['table']
    assert by_ps_lite['network'] is None and 'between this host' not in by_ps_lite['table']
