"""Emulated hosts: Horovod runs on them, and they leave no trace."""
import os
import signal
import sys
import tempfile

import numpy as np
import pytest
from lab import jobs
from lab.chaos.runner import shared_memory
from lab.cluster import EmulatedCluster
from lab.launchers import over_hosts

from . import BODIES


def traces(text):
    """Namespaces, host files and temporary directories whose name holds `text`."""
    return [path for directory in ('/run/netns', '/etc/netns', '/tmp', '/dev/shm')
            if os.path.isdir(directory) for path in os.listdir(directory) if text in path]


def test_each_host_has_its_own_name_and_network(cluster):
    for i, host in enumerate(cluster.hosts):
        seen = cluster.run(i, [sys.executable, BODIES / 'names.py']).ok().results[0]
        assert seen['name'] == host.name
        assert seen['addresses'] == {h.name: h.address for h in cluster.hosts}
        assert seen['interfaces'] == ['e0', 'lo']
        assert seen['congestion_control'] == 'reno'


def test_horovodrun_over_ssh(cluster):
    body = BODIES / 'allreduce.py'
    before = cluster.traffic(1)
    result = cluster.run(0, over_hosts([('hosta', 1), ('hostb', 1)], [body]), body=body).ok()
    assert [result.results[rank]['host'] for rank in range(2)] == ['hosta', 'hostb']
    for rank in range(2):
        assert result.results[rank]['local_size'] == 1
        np.testing.assert_array_equal(result.results[rank]['total'], np.full(4, 3, np.float32))
    assert all(after > start for start, after in zip(before, cluster.traffic(1)))


def test_only_our_leftover_shared_memory_is_found(cluster):
    assert shared_memory(cluster) == set()
    with tempfile.NamedTemporaryFile(dir='/dev/shm') as other, open(other.name, 'wb') as stranger:
        stranger.write(b'x')
        cluster.run(0, ['sh', '-c', 'echo a > /dev/shm/segment && ! ls %s' % other.name]).ok()
        cluster.run(0, ['ssh', 'hostb', 'ls /dev/shm && echo b > /dev/shm/sem.mp-x && ls /dev/shm']).ok()
        assert shared_memory(cluster) == {'hosta:/dev/shm/segment', 'hostb:/dev/shm/sem.mp-x'}
        assert cluster.run(0, ['cat', '/dev/shm/segment']).ok().output == 'a\n'  # of the host, not of a command
    for index in range(2):
        for path in cluster.shared_memory(index).iterdir():
            path.unlink()


def test_processes_left_on_a_host_are_found(cluster):
    daemonise = 'env -i setsid sleep 60 > /dev/null 2>&1 &'  # without the marker that jobs look for
    with pytest.raises(AssertionError, match=r'hostb pid \d+: sleep 60'):
        with cluster.start(0, ['ssh', 'hostb', daemonise]) as job:
            job.wait(timeout=20).ok()
        cluster.assert_idle(grace=0.5)
    cluster.assert_idle()


@pytest.mark.parametrize('how', [signal.SIGINT, 'exception'])
def test_nothing_stays_after_an_abrupt_end(how):
    if how == 'exception':
        with pytest.raises(ZeroDivisionError), EmulatedCluster(hosts=1) as cluster:
            cluster.start(0, ['sleep', '600'])
            pid = os.getpid()
            assert traces(cluster.hosts[0].namespace)
            1 / 0  # noqa: B018
        left = traces(cluster.hosts[0].namespace)
    else:
        with jobs.start_command([sys.executable, BODIES / 'interrupted.py']) as job:
            job.wait_for_output('cluster is up', timeout=30)
            pid = job.pid
            assert traces(f'mxhybrid-{pid}-')
            job.kill(pid, how)
            job.wait(timeout=20).failed('KeyboardInterrupt')
        left = traces(f'mxhybrid-{pid}-')
    assert not left


def test_clusters_do_not_collide(cluster):
    with EmulatedCluster(hosts=2) as other:
        assert other.run(0, ['ssh', 'hostb', 'cat /etc/hosts']).ok().output.count('hosta') == 1
        assert cluster.run(0, ['ssh', 'hostb', 'hostname']).ok().output.strip() == 'hostb'
