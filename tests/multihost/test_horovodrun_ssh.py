"""kvstore='hybrid' over two hosts, started by horovodrun over ssh."""
import sys
from pathlib import Path

import jobs
import numpy as np
import pytest
from cluster import EmulatedCluster

BODY = Path(__file__).parent / 'body_train.py'
TABLE = 'net_sparseembedding0_weight'


def horovodrun(cluster):
    """Command line for two workers on each of two hosts."""
    return [sys.executable, jobs.beside_python('horovodrun'), '-np', '4',
            '-H', ','.join(host.name + ':2' for host in cluster.hosts),
            '--gloo', '--network-interface', 'e0', sys.executable, str(BODY)]


@pytest.fixture(scope='module')
def expected():
    """Weights after training on the joint batches in one process, with MXNet's own store."""
    return jobs.run_job(BODY, 'none', args=['--kvstore', 'local']).ok().results[0]['weights']


def test_trains_like_one_process(cluster, expected):
    before = [cluster.traffic(i) for i in range(2)]
    with cluster.start(0, horovodrun(cluster), body=BODY) as job:
        servers = job.wait_for_processes('server', 2, timeout=120)
        where = sorted(cluster.host_of(server.pid) for server in servers)
        schedulers = [cluster.host_of(process.pid) for process in job.processes('scheduler')]
        result = job.wait(timeout=120).ok()
    cluster.assert_idle()

    assert where == [0, 1], 'one server on each host'
    assert schedulers == [0], 'the scheduler runs beside rank 0'
    assert [result.results[rank]['host'] for rank in range(4)] == ['hosta', 'hosta', 'hostb', 'hostb']
    for rank in range(4):
        assert result.results[rank]['workers'] == 4
        weights = result.results[rank]['weights']
        assert sorted(weights) == sorted(expected)
        for name in expected:
            np.testing.assert_allclose(weights[name], expected[name], rtol=1e-5, atol=1e-6, err_msg=name)
    # Half of the table lives on the other host, and in the end every worker asks for all of it.
    half = expected[TABLE].nbytes // 2
    for i in range(2):
        received, sent = (after - start for start, after in zip(before[i], cluster.traffic(i)))
        assert received > half and sent > half


def test_a_host_name_that_means_loopback():
    with EmulatedCluster(hosts=2, loopback_names=[1]) as cluster:
        with cluster.start(0, horovodrun(cluster), body=BODY) as job:
            job.wait_for_processes('worker', 1, timeout=60)
            job.wait(timeout=30).failed('hostb', '127.0.1.1', '/etc/hosts')
        cluster.assert_idle()
