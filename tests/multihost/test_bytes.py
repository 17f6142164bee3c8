"""On the lane, rows that several workers of a host touch cross its link once."""
from lab.launchers import over_hosts

from . import BODIES

BODY = BODIES / 'bytes.py'


def sent_by_the_busiest(cluster, wire):
    """Bytes sent by the busier host, and the bytes of the rows that one worker pushes."""
    before = [cluster.traffic(i) for i in range(2)]
    env = {'MXHYBRID_WIRE': wire, 'MXHYBRID_ROUTES': 'servers'}
    result = cluster.run(0, over_hosts([('hosta', 3), ('hostb', 3)], [BODY]), env=env, body=BODY).ok()
    sent = max(cluster.traffic(i)[1] - before[i][1] for i in range(2))
    return sent, result.results[0]['payload']


def test_a_host_sends_each_row_once(cluster):
    merged, payload = sent_by_the_busiest(cluster, 'lane')
    apart, _ = sent_by_the_busiest(cluster, 'ps-lite')
    # Half of the rows live on the other host. A host pushes that half and answers the other host's pulls.
    assert payload < merged < 1.25 * payload
    assert apart > 2.5 * payload
