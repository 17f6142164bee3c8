"""The examples on real data, small: their held-out metric is that of one process, whatever the launcher.

The first run downloads the data into the examples' own cache ($MXHYBRID_DATA, else ~/.cache/mxhybrid).
"""
import os
import re
import shutil
import sys

import pytest
from lab import jobs
from lab.launchers import REPOSITORY

from ..helpers.turns import slow

# What makes a run small; given last, so it wins over the rest of a command line.
SMALL = {
    'recommender.py': ['--epochs', '1'],
    'word_lm.py': ['--epochs', '1', '--max-tokens', '60000', '--vocab', '4000', '--samples', '256', '--embed', '48',
                   '--hidden', '48'],
}

# Example, launcher, workers, servers, arguments.
ALONE = [('recommender.py', 'none', 1, 0, ['--kvstore', 'local']),
         ('word_lm.py', 'none', 1, 0, ['--kvstore', 'local'])]
TOGETHER = [('recommender.py', 'horovodrun', 2, 1, []),
            ('word_lm.py', 'horovodrun', 2, 1, []),
            ('word_lm.py', 'launch.py', 2, 1, [])]

# All lines of a demo, each once but for parameters in the plan.
OF_A_DEMO = [
    r'nothing to install',
    r'\[0\]<stdout>:shakespeare: [\d,]+ training tokens, .*; 2 worker\(s\), kvstore hybrid, \d+ steps per epoch',
    r'\[0\]<stdout>:unigram test perplexity [\d.]+',
    r'\[0\]<stderr>:\[mxhybrid rank 0\] plan:',
    r'\[0\]<stderr>:mxhybrid: 2 workers on 1 host, 1 server; averages over 3 steps of rank 0; '
    r'rows and dense sums by the lane',
    r'\[0\]<stderr>:parameter +shape +route +partitions +servers +rows/step +pushed/step +pulled/step',
    r'\[0\]<stderr>:-+(  -+){7}',
    r'\[0\]<stderr>:wordlm0_.* (server weights|allreduce) .*',
    r'\[0\]<stdout>:epoch 1: train loss .*',
    r'\[0\]<stdout>:final test perplexity [\d.]+',
]

FINAL = re.compile(r'final test (perplexity|RMSE) ([\d.]+)')

pytestmark = pytest.mark.timeout(300)


def environment():
    """What an example's environment needs besides what every job of `jobs` gets."""
    return {'MXHYBRID_DATA': os.environ.get('MXHYBRID_DATA')}  # `jobs` lets no MXHYBRID_* variable through by itself


def final_metric(output):
    """float: the held-out metric, which one worker prints once."""
    found = FINAL.findall(output)
    assert len(found) == 1, output
    return float(found[0][1])


def run(example, launcher, workers, servers, args):
    """Run one example, small; returns its result."""
    return jobs.run_job(REPOSITORY / 'examples' / example, launcher, workers=workers, servers=servers,
                        args=args + SMALL[example], env=environment(), timeout=150).ok()


@pytest.fixture(scope='module')
def expected():
    """Metric of each example in one process with MXNet's own store. Downloads the data, if need be."""
    metrics = {}
    for command in ALONE:
        output = run(*command).output
        assert 'epoch 1: train' in output and 'kvstore local' in output
        metrics[command[0]] = final_metric(output)
    return metrics


# The demo, below, is the second of them.
@pytest.mark.parametrize('command', [TOGETHER[0], slow(TOGETHER[1]), TOGETHER[2]],
                         ids=lambda command: '-'.join(command[:2]))
def test_metric_is_that_of_one_process(expected, command):
    output = run(*command).output
    assert '2 worker(s), kvstore hybrid' in output
    for route in ('server weights', 'allreduce'):
        assert route in output
    tolerance = {'abs': 0.005} if command[0] == 'recommender.py' else {'rel': 0.02}
    assert final_metric(output) == pytest.approx(expected[command[0]], **tolerance)


def test_demo(expected, tmp_path):
    # scripts/demo as it is, beside an installation that has nothing to do: this test runs in what it makes.
    (tmp_path / 'scripts').mkdir()
    shutil.copy(str(REPOSITORY / 'scripts' / 'demo'), str(tmp_path / 'scripts'))
    install = tmp_path / 'scripts' / 'install'
    install.write_text('#!/bin/sh\necho nothing to install\n')
    install.chmod(0o755)
    (tmp_path / 'examples').symlink_to(REPOSITORY / 'examples')
    env = dict(environment(), MXHYBRID_VENV=sys.prefix)
    with jobs.start_command([tmp_path / 'scripts' / 'demo'] + SMALL['word_lm.py'], env=env) as job:
        output = job.wait(timeout=150).ok().output
    assert 'nothing to install' in output
    told = [line for line in output.splitlines() if not any(re.fullmatch(pattern, line) for pattern in OF_A_DEMO)]
    assert not told and len(output.splitlines()) == len(OF_A_DEMO) + 6, output  # seven parameters are in the plan
    assert final_metric(output) == pytest.approx(expected['word_lm.py'], rel=0.02)
