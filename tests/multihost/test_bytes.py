"""Bytes on links: on the lane, rows that several workers of a host touch cross its link once; counters say so."""
from lab.launchers import over_hosts

from . import BODIES

BODY = BODIES / 'bytes.py'


def run(cluster, transport):
    """Bytes received and sent by each host, and the output of worker 0, on the first host."""
    before = [cluster.traffic(i) for i in range(2)]
    env = {'MXHYBRID_ROW_TRANSPORT': transport, 'MXHYBRID_ROUTES': 'servers'}
    result = cluster.run(0, over_hosts([('hosta', 3), ('hostb', 3)], [BODY]), env=env, body=BODY).ok()
    moved = [[after - early for after, early in zip(cluster.traffic(i), before[i])] for i in range(2)]
    return moved, result.results[0]


def test_a_host_sends_each_row_once_and_counts_it(cluster):
    merged, said = run(cluster, 'lane')
    apart, by_ps_lite = run(cluster, 'ps-lite')
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
