"""``mxhybrid calibrate`` in real jobs on this host, and where it cannot work."""
import sys

import pytest
from lab import jobs
from lab.launchers import job_command

from mxhybrid.planner.cluster.cluster_spec import COST_KINDS, load

from ...helpers.turns import slow


def calibrate(launcher, workers, *arguments):
    """The command line of a calibration."""
    return job_command('-m', launcher, workers, 1, ('mxhybrid', 'calibrate') + arguments)


@pytest.mark.parametrize('launcher', ['horovodrun', slow('launch.py')])
def test_two_workers_of_a_host(launcher, tmp_path):
    path, cache = tmp_path / 'cluster.json', tmp_path / 'cache'
    with jobs.start_command(calibrate(launcher, 2, str(path)), env={'XDG_CACHE_HOME': str(cache)}) as job:
        output = job.wait(timeout=250).ok().output
    cluster = load(str(path))
    host, = cluster.hosts
    assert (host.ranks, cluster.ranks) == (2, 2) and host.cores > 0 and 0.1 < host.speed < 10
    # The reference is timed again, not taken from a cache, nor kept in one; no core is faster when both are busy.
    assert not cache.exists() and cluster.reference is not None and all(1e-5 < one < 1 for one in cluster.reference)
    assert host.speeds == () or host.speeds[0] >= host.speeds[-1] == host.speed
    assert len(host.memory_speeds) == len(host.speeds) and host.memory_speeds[:1] == host.speeds[:1]
    assert 'times as fast as the reference core' in output
    assert host.memory_bytes > 1 << 28
    # There is one host and no link, so the rate is that of memory.
    assert cluster.memory.rate > 1e8 and cluster.link == cluster.memory
    assert set(cluster.costs) == set(COST_KINDS)
    for kind, cost in cluster.costs.items():
        # The cost of 16 parameters and a megabyte is more than that of a few function calls, and less than a second.
        assert 1e-5 < cost.seconds(16, 0 if kind == 'step' else 1 << 20) < 1, kind
        assert 0 <= cost.latency_s < 1
    # Steps are those of the store's Trainers: another weight in a sum takes far less than a step of its own.
    assert cluster.costs['step'].per_item_s < 0.3 * cluster.costs['step'].seconds(1, 0)
    assert '2 workers of %s: mxhybrid calibrate' % launcher in cluster.measured
    assert 'written to %s' % path in output and output.count('written to') == 1
    for kind in ('redistribution', 'group_sum', 'push', 'pull', 'row_sum'):
        assert ' %s: ' % kind in output  # with the residual of the fit
    assert 'mean error' in output and 'calibrated in' in output
    # Within a network it takes more than by itself; how much more, one run does not show.
    assert float(output.split('redistribution in a network: ')[1].split()[0]) >= 0
    # A script calls its network before each step: "0.4 ms + 0.01 ms/parameter".
    words = output.split('calls of a network: ')[1].split()
    fixed_s, per_parameter_s = float(words[0]) / 1e3, float(words[3]) / 1e3
    assert fixed_s > 0
    cost = cluster.costs['step']
    assert cost.fixed_s > 0.99 * fixed_s and cost.per_item_s >= 0.99 * per_parameter_s


LATE = """
import sys
from mxhybrid.commands import calibrate, main
calibrate._SECONDS = calibrate._LEAST_S = 0.1
sys.exit(main.main(['calibrate', sys.argv[1]]))
"""


@pytest.mark.slow
def test_late_measurements_are_shorter(tmp_path):
    path, body = tmp_path / 'cluster.json', tmp_path / 'late.py'
    body.write_text(LATE)
    with jobs.start_command(job_command(body, 'horovodrun', 2, 1, [path])) as job:
        output = job.wait(timeout=250).ok().output
    assert 'calibrated in' in output and set(load(str(path)).costs) == set(COST_KINDS)


def test_one_worker(tmp_path):
    path = tmp_path / 'cluster.json'
    with jobs.start_command([sys.executable, '-m', 'mxhybrid', 'calibrate', str(path)]) as job:
        job.wait(timeout=60).failed('mxhybrid calibrate: the job has 1 worker, but at least 2 are needed',
                                    'horovodrun -np 4 -H hostA:2,hostB:2 mxhybrid calibrate')
    assert not path.exists()


def test_a_file_that_cannot_be_written(tmp_path):
    with jobs.start_command(calibrate('horovodrun', 2, str(tmp_path))) as job:
        output = job.wait(timeout=120).failed('is a directory: give a file in it').output
    assert 'cores' not in output
