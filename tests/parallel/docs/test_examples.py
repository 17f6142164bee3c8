"""Small runs of the examples have the metric, or the loss, of one process under each launcher.

The first run downloads the data into the examples' own cache ($MXHYBRID_DATA, else ~/.cache/mxhybrid).
"""
import dataclasses
import http.client
import importlib.util
import json
import os
import re
import shutil
import sys
import time

import mxnet as mx
import numpy as np
import pytest
from lab import jobs
from lab.launchers import REPOSITORY

import mxhybrid
from mxhybrid.planner.cluster.cluster_spec import Host, save

from ...helpers.planned_networks import cluster
from ...helpers.turns import slow

# Options that make a run small; they come last, so they override the rest of a command line.
SMALL = {
    'recommender.py': ['--epochs', '1'],
    'click_prediction.py': ['--epochs', '1', '--max-samples', '20000', '--batch-size', '200', '--save-every', '50'],
    'word_lm.py': ['--epochs', '1', '--max-tokens', '60000', '--vocab', '4000', '--samples', '256', '--embed', '48',
                   '--hidden', '48'],
    'alexnet.py': ['--steps', '12', '--batch-size', '16', '--hidden', '128'],
    'large_images.py': ['--steps', '12', '--batch-size', '2', '--side', '32'],
    'transformer_lm.py': ['--steps', '12', '--batch-size', '4', '--units', '32', '--times', '12', '--vocab', '300',
                          '--max-tokens', '20000'],
}

# Example, launcher, workers, servers, arguments.
ALONE = [('recommender.py', 'none', 1, 0, ['--kvstore', 'local']),
         ('word_lm.py', 'none', 1, 0, ['--kvstore', 'local'])]
TOGETHER = [('recommender.py', 'horovodrun', 2, 1, []),
            ('word_lm.py', 'horovodrun', 2, 1, []),
            ('word_lm.py', 'launch.py', 2, 1, [])]

# A dynamic table, alone and in jobs.
CLICK_JOBS = [('click_prediction.py', 'none', 1, 0, []),
              ('click_prediction.py', 'horovodrun', 2, 1, []),
              ('click_prediction.py', 'launch.py', 2, 2, [])]

# A network that is trained, and served meanwhile.
SERVED = [('click_prediction.py', 'none', 1, 0, ['--checkpoint', 'checkpoints', '--export', 'click']),
          ('serve.py', 'none', 1, 0, ['checkpoints', '--symbol', 'click-symbol.json'])]

# Networks that are split: the same, and the first operator of which the plan is told.
SPLIT = [('alexnet.py', 'horovodrun', 4, 1, [], 'dense0_fwd +FullyConnected +samples 2 x channels 2'),
         ('alexnet.py', 'horovodrun', 2, 1, ['--plan', 'one_weird_trick'], 'dense0_fwd +FullyConnected +channels 2'),
         ('large_images.py', 'horovodrun', 4, 1, [], 'conv0_fwd +Convolution +height 4'),
         ('large_images.py', 'launch.py', 2, 1, ['--plan', 'plan.json'], 'conv0_fwd +Convolution +width 2'),
         ('alexnet.py', 'none', 1, 0, [], 'dense0_fwd +FullyConnected +whole')]

# A Transformer: the same.
TRANSFORMERS = [('transformer_lm.py', 'horovodrun', 4, 1, [], 'layer0_attention_softmax0 +softmax +heads 4'),
                ('transformer_lm.py', 'launch.py', 2, 1, ['--plan', 'megatron', '--recompute', 'layer*'],
                 'layer0_attention_query_fwd +FullyConnected +channels 2')]
SLOW_TRANSFORMERS = [('transformer_lm.py', 'horovodrun', 4, 1, ['--plan', 'sequence:model=2,batch=2'],
                      'layer0_norm1_layernorm0 +LayerNorm +samples 2 x length 2'),
                     ('transformer_lm.py', 'horovodrun', 2, 1, ['--plan', 'pipeline'],
                      'layer0_attention_softmax0 +softmax +whole +0'),
                     ('transformer_lm.py', 'none', 1, 0, ['--plan', 'data_parallel'],
                      'layer0_attention_softmax0 +softmax +whole')]
SEARCHED = ('alexnet.py', 'horovodrun', 2, 1, ['--plan', 'auto', '--cluster', 'cluster.json'])

# All lines of a demo, each once but for parameters in the plan.
OF_A_DEMO = [
    r'nothing to install',
    r'\[0\]<stdout>:shakespeare: [\d,]+ training tokens, .*; 2 worker\(s\), kvstore hybrid, \d+ steps per epoch',
    r'\[0\]<stdout>:unigram test perplexity [\d.]+',
    r'\[0\]<stderr>:\[mxhybrid rank 0\] routes:',
    r'\[0\]<stderr>:mxhybrid: 2 workers on 1 host, 1 server; averages over 3 steps of rank 0; '
    r'rows and dense sums by the lane',
    r'\[0\]<stderr>:parameter +shape +route +partitions +servers +rows/step +pushed/step +pulled/step',
    r'\[0\]<stderr>:-+(  -+){7}',
    r'\[0\]<stderr>:wordlm0_.* (server weights|allreduce) .*',
    r'\[0\]<stdout>:epoch 1: train loss .*',
    r'\[0\]<stdout>:final test perplexity [\d.]+',
]

FINAL = re.compile(r'final test (perplexity|RMSE) ([\d.]+)')
CLICKS = re.compile(r'final test AUC ([\d.]+), log loss ([\d.]+)')
LOSSES = re.compile(r'step (\d+): loss ([\d.]+), in one process ([\d.]+)')

pytestmark = pytest.mark.timeout(300)


def environment():
    """Return the variables of an example, in addition to the variables of every job of `jobs`."""
    return {'MXHYBRID_DATA': os.environ.get('MXHYBRID_DATA')}  # `jobs` lets no MXHYBRID_* variable through by itself


def final_metric(output):
    """float: the held-out metric, which one worker prints once."""
    found = FINAL.findall(output)
    assert len(found) == 1, output
    return float(found[0][1])


def run(example, launcher, workers, servers, args, cwd=None, env=None):
    """Run one example, small; returns its result."""
    return jobs.run_job(REPOSITORY / 'examples' / example, launcher, workers=workers, servers=servers, cwd=cwd,
                        args=args + SMALL[example], env={**environment(), **(env or {})}, timeout=150).ok()


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


@pytest.mark.parametrize('data', [[], ['--drawn']], ids=['MovieLens', 'drawn'])
def test_clicks_are_predicted_from_the_checkpoint_alone(tmp_path, data):
    arguments = data + ['--checkpoint', str(tmp_path / 'checkpoints')]
    output = run('click_prediction.py', 'none', 1, 0, arguments).output
    auc, log_loss = map(float, CLICKS.search(output).groups())
    assert auc > 0.6 and log_loss < 0.69
    stored = r'checkpoint of step 80: [\d,]+ rows, test AUC ([\d.]+), log loss ([\d.]+)'
    expected = pytest.approx((auc, log_loss), abs=2e-4)
    assert tuple(map(float, re.search(stored, output).groups())) == expected
    assert len(list((tmp_path / 'checkpoints').iterdir())) == 2  # the second one has the changed rows
    again = run('click_prediction.py', 'none', 1, 0, arguments + ['--evaluate']).output
    assert tuple(map(float, re.search(stored, again).groups())) == expected
    resumed = run('click_prediction.py', 'none', 1, 0, arguments + ['--resume']).output
    assert 'resumed after 80 steps' in resumed and tuple(map(float, CLICKS.search(resumed).groups())) == expected


class Client:
    """A client of examples/serve.py."""

    def __init__(self, address):
        self._address = address

    def ask(self, path, request=None, status=200):
        """Send a request; return the answer."""
        connection = http.client.HTTPConnection(self._address, timeout=30)
        body = None if request is None else json.dumps(request)
        connection.request('GET' if request is None else 'POST', path, body)
        response = connection.getresponse()
        assert response.status == status
        return json.loads(response.read().decode())


def test_a_network_is_served_while_a_job_trains_it(tmp_path):
    """Every answer comes from one checkpoint, steps rise, and the last answers are those of the checkpoint alone."""
    checkpoints, keys = tmp_path / 'checkpoints', np.random.RandomState(0).randint(-2 ** 62, 2 ** 62, (3, 26)).tolist()

    def start(command, *args):
        return jobs.start_job(REPOSITORY / 'examples' / command[0], command[1], args=command[4] + list(args),
                              env=environment(), cwd=tmp_path)

    options = ['--drawn', *SMALL['click_prediction.py'], '--save-every', '5']
    with start(SERVED[0], *options) as first:  # 80 steps
        first.wait(timeout=100).ok()
    with start(SERVED[1], '--port', '0', '--reload-seconds', '0.2') as server:
        server.wait_for_output('serving step', 60)
        client = Client(re.search(r'http://(\S+)', server.output).group(1))
        steps, deadline = [client.ask('/predict', {'features.rows': keys})['step']], time.monotonic() + 100
        with start(SERVED[0], *options, '--resume', '--epochs', '3') as job:
            while steps[-1] < 240:
                answer = client.ask('/predict', {'features.rows': keys})
                rows = client.ask('/rows', {'features': keys})['rows']['features']
                assert np.isfinite(answer['outputs']).all() and np.shape(rows) == (3, 26, 9)
                steps.append(answer['step'])
                assert time.monotonic() < deadline
            assert steps == sorted(steps) and steps[0] == 80 and len(set(steps)) > 2
            job.wait(timeout=100).ok()
            with mxhybrid.checkpoint.open(checkpoints) as tables:
                stored = np.concatenate([keys for keys, _ in tables['features'].pieces()])[:78].reshape(3, 26)
                expected = example_module('click_prediction').logits_of(tables, stored)
                answer = client.ask('/predict', {'features.rows': stored.tolist()})
                np.testing.assert_allclose(answer['outputs'][0], expected, rtol=1e-4, atol=1e-5)
                rows = client.ask('/rows', {'features': stored.tolist()})['rows']['features']
                np.testing.assert_array_equal(np.float32(rows), tables['features'].rows(stored))
            assert client.ask('/')['step'] == 240 and client.ask('/')['age_s'] >= 0
            for path, request, status, message in [
                    ('/predict', {'rows': 1}, 400, "inputs ['rows']: give ['features.rows']"),
                    ('/rows', {'items': [1]}, 400, "has no 'items'"), ('/rows', {'features': [0.5]}, 400, 'integers'),
                    ('/rows', [1], 400, 'no JSON object'), ('/none', {}, 404, 'there is no /none')]:
                assert message in client.ask(path, request, status)['error']


def test_clicks_in_jobs_are_predicted_as_in_one_process():
    alone, *jobs_of_several = [tuple(map(float, CLICKS.search(run(*command).output).groups()))
                               for command in CLICK_JOBS]
    for measures in jobs_of_several:
        assert measures == pytest.approx(alone, abs=2e-3)


def test_demo(expected, tmp_path):
    # scripts/demo, unchanged, but with an installation that has nothing to do: this test runs in the installed
    # environment.
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


def check_losses(output, last=3.0):
    """The losses that one worker prints are those of one process; the last one is below `last`."""
    found = [tuple(map(float, one)) for one in LOSSES.findall(output)]
    assert [one[0] for one in found] == [10, 12], output
    for _, loss, alone in found:
        assert loss == pytest.approx(alone, rel=1e-3)
    assert found[0][1] != found[1][1] < last


@pytest.mark.parametrize('command', [*SPLIT, *TRANSFORMERS, *map(slow, SLOW_TRANSFORMERS)],
                         ids=lambda command: '-'.join(map(str, command[:3])))
def test_a_split_network_has_the_loss_of_one_process(command, tmp_path):
    mxhybrid.parallel.save(str(tmp_path / 'plan.json'), mxhybrid.parallel.grid(domain=(1, 2)))
    whole = str(tmp_path / 'whole.params')
    output = run(*command[:4], command[4] + ['--save', whole], cwd=tmp_path).output
    assert re.search(command[5], output), output
    weights = mx.nd.load(whole)
    if command[0] == 'transformer_lm.py':
        check_losses(output, last=5.5)  # log(300) is 5.7
        assert weights['embedding.weight'].shape == (300, 32)
    else:
        check_losses(output)
        assert weights['0.weight'].shape[1] == 3


@pytest.mark.slow  # test_planner trains by the plan that it found, too
def test_a_plan_is_searched_for(tmp_path):
    save(str(tmp_path / 'cluster.json'), dataclasses.replace(cluster(1, 2), hosts=(Host('here', 2, 2.0),)))
    output = run(*SEARCHED[:4], SEARCHED[4] + ['--search-seconds', '1'], cwd=tmp_path,
                 env={'XDG_CACHE_HOME': str(tmp_path)}).output
    assert re.search("plan='auto': (a step takes|no plan is predicted to be faster)", output)
    check_losses(output)


def example_module(name):
    """Import a file of the examples."""
    sys.path.insert(0, str(REPOSITORY / 'examples'))
    try:
        spec = importlib.util.spec_from_file_location(name, str(REPOSITORY / 'examples' / (name + '.py')))
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


@pytest.fixture(scope='module')
def plan_of():
    """Return the function by which examples parse a plan."""
    return example_module('_plans').plan_of


def test_plans_as_text(plan_of):
    for text, plan in [('grid:model=2,batch=4', mxhybrid.parallel.grid(model=2, batch=4)),
                       ('grid:domain=2x3,batch=2', mxhybrid.parallel.grid(domain=(2, 3), batch=2)),
                       ('grid:domain=4', mxhybrid.parallel.grid(domain=(4,))),
                       ('data_parallel', mxhybrid.parallel.data_parallel()),
                       ('one_weird_trick', mxhybrid.parallel.one_weird_trick())]:
        assert plan_of(text).as_json() == plan.as_json()
    assert (plan_of('auto'), plan_of('a/plan.json')) == ('auto', 'a/plan.json')
    for text, message in [('grid:modle=2', "'modle'"), ('grid:model=many', "'many'"),
                          ('grid:model', 'grid:model=2,batch=2'),
                          ('grid:model=2x2', 'whole numbers'), ('data_parallel:batch=2', "'batch'")]:
        with pytest.raises(SystemExit, match=message):
            plan_of(text)


def test_a_plan_that_cannot_be_is_named(tmp_path):
    output = jobs.run_job(REPOSITORY / 'examples' / 'alexnet.py', 'none', args=['--plan', 'grid:model=3'],
                          timeout=60).failed().output
    assert '--plan grid:model=3: plan: grid of model 3 is for 3 workers, but the job has 1' in output
    assert 'Traceback' not in output
