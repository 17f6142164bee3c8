"""The planner as users see it: the command, its files, and training by the plan that it finds."""
import contextlib
import dataclasses
import fcntl
import functools
import json
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
import threading

import pytest
from lab.jobs import run_job

from mxhybrid.commands.main import main
from mxhybrid.planner.cluster.cluster_spec import Host, save
from mxhybrid.planner.simulator.resource_groups import TokenBucket

from ...helpers.planned_networks import cluster
from ...helpers.turns import slow
from . import BODIES

NETS = '''
import mxhybrid
from mxnet.gluon import nn

def sequential(layers, kind=nn.HybridSequential):
    net = kind(prefix='net_')
    with net.name_scope():
        net.add(*layers())
    return net

def make_net():
    return sequential(lambda: [nn.Conv2D(8, 3, padding=1, in_channels=3, activation='relu'), nn.MaxPool2D(4),
                               nn.Flatten(), nn.Dense(2048, activation='relu'), nn.Dense(10, in_units=2048)])

def make_table():
    return sequential(lambda: [nn.Embedding(4000, 16, sparse_grad=True), nn.Flatten(), nn.Dense(4, in_units=64)])

def of_two():
    class Net(nn.HybridSequential):
        def hybrid_forward(self, F, image, extra):
            return self._children['0'](image) + extra
    return sequential(lambda: [nn.Dense(5, in_units=12)], Net)

def of_dynamic_tables():
    return nn.Dense(8, in_units=416), {mxhybrid.nn.HashEmbedding(16, prefix='users_'): 25,
                                       mxhybrid.nn.Embedding(1000, 16, prefix='items_'): 1}

def no_net():
    return nn.Sequential()

def of_shapes():
    return nn.HybridLambda(lambda F, data: data * data.shape[0])

def of_arguments(size):
    return nn.Dense(size)

def of_halves():
    net = sequential(lambda: [nn.Dense(4, in_units=16)])
    net.cast('float16')
    return net

def of_words():
    from words import rows
    return sequential(lambda: [nn.Embedding(rows, 16, sparse_grad=True), nn.Dense(8)])

def of_diagonals():
    return sequential(lambda: [nn.Dense(6, in_units=6, flatten=False),
                               nn.HybridLambda(lambda F, data: F.tanh(F.diag(data, axis1=1, axis2=2)))])

def of_losses():
    return sequential(lambda: [*[nn.Dense(64, in_units=64) for _ in range(4)],
                               nn.HybridLambda(lambda F, data: F.mean(data, axis=0, exclude=True))])

if __name__ == '__main__':
    raise AssertionError('a planner trains nothing')
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with the script of the networks and cluster files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'path', list(sys.path))
    (tmp_path / 'train.py').write_text(NETS)
    on = cluster(4, rate=1e6)
    small = dataclasses.replace(on.hosts[0], memory_bytes=1000)
    for name, spec in (('cluster', on), ('other', cluster(4, rate=2e6)),
                       ('small', dataclasses.replace(on, hosts=on.hosts[1:] + (small,)))):
        save('%s.json' % name, spec)
    return tmp_path


def arguments_of(words='', model='make_net', inputs='data=8,3,16,16', on='cluster.json'):
    """Return the arguments of the command; `words` are those that no other parameter has."""
    return ['plan', model if ':' in model or '.' in model else 'train.py:' + model, '--inputs', *inputs.split(),
            '--profiles', 'profiles.json', *(['--cluster', on] if on else []), *shlex.split(words)]


def run_alone(arguments, program=('-m', 'mxhybrid'), **options):
    """Run the command in a process of its own; return the completed process."""
    return subprocess.run([sys.executable, *program, *arguments], stderr=subprocess.PIPE, universal_newlines=True,
                          timeout=300, **options)


@pytest.fixture
def plan(folder, capsys):
    """Run the command, in this process or in one of its own; return its output, or its error where it fails."""
    def run(words='', status=0, in_process=True, **options):
        # Other tests may run on this machine: the next command needs the times all the same.
        arguments = [*arguments_of(words, **options), '--keep-busy-times']
        if in_process:
            returncode, (output, error) = main(arguments), capsys.readouterr()
        else:
            done = run_alone(arguments, stdout=subprocess.PIPE)
            returncode, output, error = done.returncode, done.stdout, done.stderr
        assert returncode == status, output + error
        return output if status == 0 else error
    return run


def test_counts_dynamic_tables(plan):
    text = plan('--evaluate-only --states 1', model='of_dynamic_tables', inputs='data=8,416')
    assert 'users_weight' in text and '1000, if all are updated' in text and 'the optimizer keeps 1 array' in text
    assert 'rows of dynamic tables' in text


def step_of(text):
    return next(line.split(' a step')[0] for line in text.splitlines() if ' a step: ' in line)


def test_finds_exports_and_evaluates(folder, plan):
    output = plan('--budget 5 --export plan.json --trace step.json --taskgraph plan.svg', in_process=False)
    ratio = float(output.partition('predicted to be ')[2].split()[0])
    assert ratio > 2, output  # 1.1 MB of weights, most in one dense layer, at 1 MB/s
    assert 'data parallelism:' in output and 'written by hand' in output
    written = json.loads((folder / 'plan.json').read_text())
    assert set(written['operators']) >= {'conv0_fwd', 'dense0_fwd', 'dense1_fwd'}
    assert {event['ph'] for event in json.loads((folder / 'step.json').read_text())} >= {'X', 'M'}
    assert '<svg' in (folder / 'plan.svg').read_text()
    # The same step without a search, in another process that times nothing again.
    again = plan('--import plan.json --evaluate-only', in_process=False)
    assert step_of(again) == step_of(output)
    busy = dict(json.loads((folder / 'cluster.json').read_text()), busy='other programs compute')
    (folder / 'busy.json').write_text(json.dumps(busy))
    slower = plan('--evaluate-only', on='busy.json')
    assert 'measured on a busy machine: other programs compute' in slower
    assert step_of(slower) != step_of(output)
    table = plan('--compare plan.json')
    assert 'data parallel' in table and step_of(output) in table and step_of(slower) in table
    assert 'predicted to be' in plan('--import plan.json --budget 1')
    refused = plan('--compare plan.json', on='other.json', status=1)
    assert 'plan.json: plan: the planner found it for another cluster' in refused
    # Before anything is timed for it.
    refused = plan('--import plan.json --profiles new.json', inputs='data=16,3,16,16', status=1)
    assert 'another network' in refused and not (folder / 'new.json').exists()


def test_tables_of_a_plan_are_told_and_kept(folder, plan):
    plan = functools.partial(plan, model='make_table', inputs='data=8,4')
    output = plan('--budget 2 --export plan.json')
    written = json.loads((folder / 'plan.json').read_text())
    assert written['format'] == 'mxhybrid.parallel 2' and written['tables']['embedding0_weight']['route'] == 'servers'
    assert 'embedding0_weight: rows by servers, %d partition' % written['tables']['embedding0_weight'][
        'partitions'] in output
    again = plan('--import plan.json --evaluate-only --export again.json')
    assert step_of(again) == step_of(output)
    assert (folder / 'again.json').read_text() == (folder / 'plan.json').read_text()
    assert 'embedding0_weight: the plan has no route for its rows' in plan('--evaluate-only')
    (folder / 'plan.json').write_text(json.dumps(dict(written, tables={'embedding0_weight': {'route': 'allreduce'}})))
    slower = plan('--import plan.json --evaluate-only')
    assert 'sums of rows' in slower and step_of(slower) != step_of(output)
    (folder / 'plan.json').write_text(json.dumps(dict(written, tables={'dense0_weight': {'route': 'allreduce'}})))
    refused = plan('--import plan.json --evaluate-only', status=1)
    assert 'dense0_weight is not a table of the network' in refused


def test_operators_without_a_rule_are_told(plan):
    for words in ('--export plan.json', '--import plan.json'):
        output = plan('--evaluate-only ' + words, model='of_diagonals', inputs='data=8,6,6')
        for line in (r'diag0: [0-9.e-]+ ms a step whole on every worker, 4 times the work of a shard each, from inputs '
                     r'of 1\.2 kB: there is no rule for diag', r'tanh0: [0-9.e-]+ ms a step whole on every worker',
                     r'output 0 \(hybridlambda0_tanh0\): whole on'):
            assert re.search(line, output), output


def test_is_repeatable_by_a_seed(folder, plan):
    # The first search times operators, so its estimates change while it runs.
    plan('--budget 1000 --proposals 60')
    runs = []
    for in_process in (True, False):  # another process has other hashes
        plan('--budget 1000 --proposals 60 --seed 5 --export plan.json', in_process=in_process)
        runs.append((folder / 'plan.json').read_text())
    assert runs[0] == runs[1]


def test_ctrl_c_ends_the_search_with_its_best_plan(folder):
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 100, 0, 0))  # or bars have no room
    command = [sys.executable, '-m', 'mxhybrid', *arguments_of('--budget 1000 --export plan.json')]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, universal_newlines=True) as process:
        os.close(terminal)
        seen = ''
        while 'search: ' not in seen or ' plans, best ' not in seen:  # pytest has a time limit
            seen += os.read(controller, 1 << 16).decode()
        assert 'operators: ' in seen
        process.send_signal(signal.SIGINT)
        reader = threading.Thread(target=_read_all, args=(controller,))
        reader.start()
        output = process.communicate(timeout=120)[0]
    reader.join()
    os.close(controller)
    assert process.returncode == 0 and 'interrupted: this is the best plan so far' in output
    assert 'predicted to be' in output and json.loads((folder / 'plan.json').read_text())['operators']


def _read_all(terminal):
    with contextlib.suppress(OSError):  # EIO, when nobody has the other end any more
        while os.read(terminal, 1 << 16):
            pass


def test_ends_when_nothing_is_gained(plan):
    output = plan('--budget 1000 --patience 50')
    assert float(output.rpartition('proposals in ')[2].split()[0]) < 100


def test_pipelines_are_predicted_and_exported(folder, plan):
    plan = functools.partial(plan, model='of_losses', inputs='data=8,64')
    pipeline = {'format': 'mxhybrid.parallel 2', 'plan': 'pipeline', 'stages': 4, 'micro_batches': 4}
    (folder / 'pipeline.json').write_text(json.dumps(pipeline))
    first = plan('--evaluate-only --import pipeline.json --export all.json --trace step.json --taskgraph plan.svg')
    assert 'pipeline of 4 stages, 4 micro-batches, 1f1b' in first and 'stage 3 on ranks 3: ' in first
    assert json.loads((folder / 'all.json').read_text())['pipeline']['micro_batches'] == 4
    assert (folder / 'plan.svg').exists() and 'add gradients of ' in (folder / 'step.json').read_text()
    assert step_of(plan('--evaluate-only --import all.json')) == step_of(first)
    (folder / 'pipeline.json').write_text(json.dumps(dict(pipeline, micro_batches=3)))
    wrong = plan('--evaluate-only --import pipeline.json', status=1)
    assert 'pipeline.json: plan: 3 micro-batches do not divide the joint batch of 8 samples: give one of 1, 2' in wrong
    wrong = plan('--evaluate-only --import all.json --no-pipelines', status=1)
    assert '--no-pipelines has no effect with --evaluate-only: leave it out' in wrong


def test_sharded_updates_are_predicted(plan):
    assert '% gathers of weights' in plan('--evaluate-only --shard-updates')
    assert '% gathers of weights' not in plan('--evaluate-only')


def test_a_plan_is_found_before_the_search_walks(folder, plan):
    output = plan('--budget 1e-9 --export plan.json')
    assert ' 0 proposals in ' in output and 'give it more, with --budget' in output
    exported = json.loads((folder / 'plan.json').read_text())
    label = next(iter(exported['operators']))
    del exported['operators'][label]
    (folder / 'plan.json').write_text(json.dumps(exported))
    wrong = plan('--import plan.json --evaluate-only', status=1)
    assert 'operator %s has no split: add a split, or make another plan' % label in wrong


def test_tables_are_timed_and_outside_modules_found(folder):
    (folder / 'words.py').write_text('rows = 1000')
    program = ('from mxhybrid.commands.main import main; import sys; sys.path = [path for path in sys.path if path]; '
               'sys.exit(main())')  # as the installed command, which has no working directory to import from
    for model in ('train.py:of_words', 'train:of_words'):
        run_alone(arguments_of('--budget 1', model, 'data=8,6:int32'), ('-c', program), check=True)


def test_formulas_need_no_cluster(plan):
    output = plan('--formula 2,4,8', on=None)
    assert [line.split()[0] for line in output.splitlines()[3:6]] == ['2', '4', '8']
    assert 'dense0_fwd' in output


def test_output_that_cannot_be_written_is_reported(plan):
    assert 'plan: cannot write /dev/full: [Errno 28]' in plan('--evaluate-only --export /dev/full', status=1)
    with open('/dev/full', 'w') as full:
        done = run_alone(arguments_of('--evaluate-only'), stdout=full)
    assert done.returncode == 1 and done.stderr.startswith('mxhybrid plan: standard output cannot be written: ')
    assert 'Traceback' not in done.stderr and 'Exception' not in done.stderr
    closed = run_alone(arguments_of('--evaluate-only'), preexec_fn=lambda: os.close(1))
    assert (closed.returncode, closed.stderr) == (0, '')


def test_inputs_named_like_arguments_have_any_order(plan):
    outputs = {plan('--evaluate-only', model='of_two', inputs=inputs)
               for inputs in ('image=8,12 extra=8,5', 'extra=8,5 image=8,12', 'a=8,12 b=8,5')}
    assert len(outputs) == 1
    refused = plan('--evaluate-only', model='of_two', inputs='b=8,5 a=8,12', status=1)
    assert 'does not take data of shapes' in refused


@pytest.mark.parametrize('words, options, message', [
    ('', {'on': None}, '--cluster is missing'), ('', {'on': 'nowhere.json'}, 'cannot read nowhere.json'),
    ('', {'model': 'train.py'}, 'train.py:make_net'), ('', {'model': 'nothing'}, 'has no function nothing'),
    ('', {'model': 'nowhere.py:make_net'}, 'cannot read nowhere.py'), ('', {'model': 'no_net'}, 'return a HybridBlock'),
    ('', {'model': 'wrong.py:make_net'}, 'cannot read wrong.py: invalid syntax'),
    ('', {'model': 'of_shapes'}, 'cannot be traced'), ('', {'model': 'of_arguments'}, 'give a function without'),
    ('', {'inputs': 'data=8,x'}, 'give the shape of the joint batch'),
    ('', {'inputs': 'data=8,3,0,16'}, 'whole numbers of at least 1'),
    ('', {'inputs': 'data=8,3,16,16 more=8'}, 'called with 2 symbols, it raises'),
    ('--budget 1 --memory 0.000001', {}, 'in every plan that was tried'),
    ('--budget 1', {'on': 'small.json'}, 'more than the limit of 1000 bytes, or than memory_bytes'),
    ('--export nowhere/plan.json', {}, 'nowhere/plan.json cannot be written'),
    ("--export ''", {}, '--export: the name of the file is empty'),
    ('--budget -1', {}, '--budget -1.0: give a number above 0'),
    ('--budget inf', {}, '--budget inf: give the number of seconds after'),
    ('--patience 0', {}, '--patience 0: give a number above 0'), ('--seed -1', {}, '--seed -1: give a number from 0'),
    ('--states -1', {}, '--states -1: give a number of arrays'),
    ('--formula many', {'on': None}, 'give numbers of ranks'),
    ('--formula 99999999999', {'on': None}, '99999999999 ranks: give at most 65536'),
    ('--formula 4 --batch-axis 7', {'on': None}, 'batch_axis=7'),
    ('--formula 4 --formula-png x', {'on': None}, 'x: give a name that ends in .png'),
    ('--formula-png x.png', {}, 'give --formula, too'),
    ('--compare a.json --export b.json', {}, '--export has no effect with --compare'),
    ('--evaluate-only --memory 1', {}, '--memory has no effect with --evaluate-only'),
    ('--taskgraph x.xyz', {}, 'x.xyz: give a name that ends in .svg'),
    ('--gantt x.xyz', {}, 'x.xyz: give a name that ends in .png')],
    ids=str)
def test_says_what_is_wrong(folder, plan, words, options, message):
    (folder / 'wrong.py').write_text('def make_net(:')
    assert message in plan(words, status=1, **options)


def test_an_operator_that_cannot_be_timed_ends_no_search(plan, caplog):
    assert 'predicted to be' in plan('--budget 1000 --proposals 20', model='of_halves', inputs='data=8,16:float16')
    assert caplog.text.count('dense0_fwd (FullyConnected of shape (8, 4), float16) cannot be timed on this machine, '
                             'its time is estimated from other operators: MXNetError: float16 fully connected '
                             'layer') == 1


@pytest.mark.parametrize('launcher', ['horovodrun', slow('launch.py')])
def test_trains_by_what_it_found(tmp_path, launcher):
    path = str(tmp_path / 'cluster.json')
    # The link is so slow that sums of these weights cost much more than redistributions of activations.
    there = dataclasses.replace(cluster(1, 2), hosts=(Host('here', 2, 2.0),), memory=TokenBucket(1e8))
    save(path, there)
    result = run_job(BODIES / 'automatic.py', launcher, workers=2, args=[path], timeout=240,
                     env={'MXHYBRID_LOG_LEVEL': 'INFO', 'XDG_CACHE_HOME': str(tmp_path)}).ok()
    assert re.search(r"plan='auto': a step takes .* by the plan that was found \(predicted: .*\), .* by data "
                     r'parallelism, and .* without a plan: (the plan that was found|data parallelism) is taken',
                     result.output)
    for rank in range(2):
        found = result.results[rank]
        assert found['apart'] < 1e-10 and found['draws'][0] == found['draws'][1] == result.results[0]['draws'][0]
        messages = ['mxhybrid calibrate', 'cannot read /nowhere', 'hosts of [2, 2]', "batch_norm='local'",
                    'cluster=5: give the name of a file', 'search_seconds=-1: give more than 0',
                    "worker 0 has the call parallelize(plan='auto'), worker 1 has"]
        assert [message in error for message, error in zip(messages, found['errors'])] == [True] * 7, found['errors']
    assert result.results[0]['plan'] == result.results[1]['plan']
