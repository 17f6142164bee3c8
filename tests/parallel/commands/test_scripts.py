"""A short soak, and scripts/gpu as far as it goes without a GPU, with its benchmark on CPUs."""
import os
import subprocess
import sys

import pytest
from lab.launchers import REPOSITORY, SCRIPTS
from lab.soak.cli import soak

from ...helpers.no_driver import compile_no_driver

SMALL = ['--epochs', '1', '--max-tokens', '60000', '--vocab', '4000', '--samples', '256', '--embed', '48',
         '--hidden', '48']


def test_without_a_device_it_says_so_and_installs_nothing(tmp_path):
    compile_no_driver(tmp_path)
    env = dict(os.environ, LD_LIBRARY_PATH=str(tmp_path), MXHYBRID_VENV=str(tmp_path / 'venv'))
    result = subprocess.run([str(SCRIPTS / 'gpu')], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            timeout=60, check=False, universal_newlines=True)
    assert result.returncode == 3
    assert 'finds no device (error 100)' in result.stdout and 'NOTHING was tried on a GPU' in result.stdout
    assert not (tmp_path / 'venv').exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_ways_of_the_benchmark_end_with_one_perplexity():
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(SCRIPTS), str(REPOSITORY)]), OMP_NUM_THREADS='1')
    result = subprocess.run([sys.executable, '-m', 'lab.gpu_benchmark', '--cpus', '--timeout', '150'] + SMALL, env=env,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=580, check=False,
                            universal_newlines=True)
    assert result.returncode == 0, result.stdout
    table = result.stdout[result.stdout.index('| way |'):].splitlines()
    assert len(table) == 2 + 6 and 'FAILED' not in result.stdout


def test_a_job_of_random_steps_stays_equal_to_numpy():
    outcome = soak('horovodrun', workers=2, servers=2, seconds=0, steps=1500, interval=0.1)
    assert outcome['steps'] >= 1500
    judged = {row['process'].split(' (')[0]: row['grew'] for row in outcome['judgement']}
    assert {name.split()[0] for name in judged} == {'worker', 'server', 'scheduler'} and len(judged) >= 4
    # Memory, shared or not, and its descriptors have not found their size after so few steps; threads have.
    assert not any('threads' in grew for grew in judged.values()), outcome['judgement']
    assert all(row['after']['threads'] > 0 and row['samples'] >= 8 for row in outcome['judgement'])


def test_expiring_keys_stay_equal_to_one_process():
    outcome = soak('horovodrun', workers=2, servers=2, seconds=0, steps=400, interval=0.1, expiry=True)
    assert outcome['steps'] >= 400
    for values in outcome['results'].values():
        assert all(rows > 500 for rows in values['rows'].values()), values
        assert all(expired > 1000 for expired in values['expired'].values()), values
