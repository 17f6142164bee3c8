"""scripts/bench on this host: every contender that MXNet can run, and the message if one fails."""
import json
import sys

import pytest
from lab import jobs
from lab.launchers import SCRIPTS

BENCH = [sys.executable, SCRIPTS / 'bench']
SMALL = ['--no-network', '--hosts', '2', '--workers', '2', '--shrink', '50', '--warmup', '1', '--steps', '3',
         '--rounds', '1', '--width-scale', '0.125']
CONTENDERS = ['hybrid', 'hybrid_prefetch', 'hybrid_stale', 'hybrid_engines', 'hybrid_float16', 'hybrid_int8',
              'dist_sync', 'horovod_gather', 'horovod_dense']


def bench(directory, *arguments, timeout=280, env=None):
    """Run scripts/bench; return its output, and the runs in its file, bench.json."""
    with jobs.start_command([*BENCH, *arguments, '--json', directory / 'bench.json'], env=env) as job:
        output = job.wait(timeout=timeout).ok().output
    return output, json.loads((directory / 'bench.json').read_text())['runs']


def test_all_contenders_on_loopback(tmp_path):
    output, (run,) = bench(tmp_path, *SMALL, '--workers', '1')
    # The benchmark itself checks that each contender has the right sums.
    assert sorted(run['contenders']) == sorted(CONTENDERS)
    assert sorted(run['skipped']) == ['torch_sharded', 'torchrec']
    for name, figures in run['contenders'].items():
        assert any(line.split()[:1] == [name] for line in output.splitlines()), output
        assert figures['step_s'] > 0 and len(figures['rounds'][0]['steps_s']) == 3
        assert figures['sent'] is None, 'on loopback nothing is counted'
    assert run['contenders']['hybrid']['ratio'] == 1
    assert run['bound']['sent'] > 0 and run['bound']['step_s'] is None


@pytest.mark.parametrize('workload, steps', [('train_lm', 12), ('train_movielens', 3)])
def test_all_contenders_learn_the_same(tmp_path, workload, steps):
    names = ['hybrid', 'hybrid_engines', 'dist_sync', 'horovod_gather', 'horovod_dense']
    _, (run,) = bench(tmp_path, *SMALL, '--workload', workload, '--hosts', '1', '--steps', str(steps),
                      '--contenders', ','.join(names), timeout=200)
    curves = [run['contenders'][name]['rounds'][0]['losses'] for name in names]
    assert len(curves[0]) == steps + 1 and curves[0][-1] != curves[0][0]
    for curve in curves[1:]:
        assert curve == pytest.approx(curves[0], rel=1e-3)
    with jobs.start_command(BENCH + ['--from', tmp_path / 'bench.json', '--plot', tmp_path / 'training.svg']) as job:
        job.wait(timeout=60).ok()
    drawn = (tmp_path / 'training-loss.svg').read_text()
    assert all(name in drawn for name in names) and '--workload %s' % workload in drawn


def test_overhead_in_one_process(tmp_path):
    output, figures = bench(tmp_path, '--workload', 'overhead', '--steps', '1', '--rounds', '1', timeout=200)
    assert [each['other'] for each in figures] == ['local', None]
    for each in figures:
        assert 0 < each['low'] <= each['ratio'] <= each['high']
        assert '%.3f x' % each['ratio'] in output


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_tables_beside_their_goals(tmp_path):
    output, figures = bench(tmp_path, '--workload', 'tables', '--parts', 'start,memory,hash,collection,checkpoint',
                            '--ids', '8', '--touched', '100000', '--steps', '2', '--warmup', '1', '--rounds', '1')
    assert len(figures) == 14
    for figure in figures:
        assert any(line.startswith(figure['what']) for line in output.splitlines()), output


def test_a_worker_that_fails_ends_the_benchmark():
    with jobs.start_command(BENCH + SMALL + ['--env', 'MXHYBRID_PARTITIONS=none']) as job:
        job.wait(timeout=100).failed('bench: worker ', "MXHYBRID_PARTITIONS='none' is not a whole number")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize('hosts, workers', [(2, 1), (1, 2)])
def test_plans_are_predicted_and_measured(tmp_path, hosts, workers):
    output, (run,) = bench(
        tmp_path, '--workload', 'plans', '--no-network', '--hosts', str(hosts), '--workers', str(workers), '--steps',
        '2', '--warmup', '1', '--rounds', '1', '--cases', 'recommender', '--profiles', tmp_path / 'profiles.json',
        timeout=380, env={'PYTHONPATH': None, 'OMP_NUM_THREADS': None})
    assert set(run['predicted']) == set(run['measured']) >= {'data', 'trick', 'model 2', 'found'}
    assert all(run[what][name] > 0 for what in ('predicted', 'measured') for name in run[what])
    assert 'recommender on %d hosts x %d workers, no network' % (hosts, workers) in output
