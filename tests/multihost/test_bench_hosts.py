"""scripts/bench between emulated hosts: links are limited, bytes are counted, and every way to end leaves nothing."""
import json
import signal
import sys

import pytest
from lab import jobs
from lab.emulation import INTERFACE, Network, run
from lab.launchers import SCRIPTS

from .test_cluster import traces

BENCH = [sys.executable, SCRIPTS / 'bench']
SMALL = ['--hosts', '2', '--workers', '2', '--shrink', '20', '--warmup', '1', '--steps', '3', '--rounds', '1',
         '--width-scale', '0.125']
CONTENDERS = ['hybrid', 'hybrid_float16', 'hybrid_int8', 'dist_sync', 'horovod_gather']
#: The bytes that rounding may leave at least, and at most, of the bytes of `hybrid`.
LEFT = {'hybrid_float16': (0.5, 0.6), 'hybrid_int8': (0.25, 0.4)}


def test_links_are_limited_at_both_ends():
    with Network(2, mbit_per_s=25) as network:
        for host in network.hosts:
            assert 'tbf' in run('tc', '-n', host.namespace, 'qdisc', 'show', 'dev', INTERFACE)
        namespaces = [host.namespace for host in network.hosts] + [network.token + '-switch']
        for namespace, count in zip(namespaces, (1, 1, 2)):
            limits = [line for line in run('tc', '-n', namespace, 'qdisc', 'show').splitlines() if ' tbf ' in line]
            assert len(limits) == count and all('rate 25Mbit' in line for line in limits)


def test_a_congestion_control_that_cannot_be_had():
    with jobs.start_command(BENCH + SMALL + ['--tcp', 'nosuch', '--contenders', 'hybrid']) as job:
        result = job.wait(timeout=60)
    assert result.returncode == 1
    assert "TCP congestion control 'nosuch' is not available" in result.output and 'choose reno' in result.output
    assert not traces('mxhybrid-%d-' % job.pid)


def test_two_hosts(tmp_path):
    file = tmp_path / 'bench.json'
    with jobs.start_command(BENCH + SMALL + ['--contenders', ','.join(CONTENDERS), '--json', file]) as job:
        job.wait(timeout=200).ok()
    measured, = json.loads(file.read_text())['runs']
    assert sorted(measured['contenders']) == sorted(CONTENDERS)
    for name, figures in measured['contenders'].items():
        assert len(figures['rounds'][0]['hosts']) == 2
        for direction in ('sent', 'received'):
            # Each pays for ids and headers, too: none can move less than the bound, or a part of it after rounding.
            assert figures[direction] > measured['bound'][direction] * LEFT.get(name, (1, 1))[0] > 0
    for direction in ('sent', 'received'):
        for name, (_, most) in LEFT.items():
            assert measured['contenders'][name][direction] < most * measured['contenders']['hybrid'][direction]
    assert not traces('mxhybrid-%d-' % job.pid)


@pytest.mark.parametrize('how', [signal.SIGINT, signal.SIGTERM])
def test_nothing_stays_after_a_signal(how):
    with jobs.start_command(BENCH + SMALL + ['--contenders', 'hybrid']) as job:
        job.wait_until(lambda: sum('lab.benchmark.worker' in process.cmdline for process in job.processes()) >= 4, 60,
                       'four workers')
        assert len(traces('mxhybrid-%d-' % job.pid)) >= 3
        job.kill(job.pid, how)
        result = job.wait(timeout=60).failed('interrupted by %s' % how.name)
    assert result.returncode == 128 + how
    assert not traces('mxhybrid-%d-' % job.pid)
