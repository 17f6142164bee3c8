"""The benchmark's workloads, bounds, expected sums and report."""
import contextlib
import json
import os
import re
import signal
import socket
import sys
import time

import numpy as np
import pytest
from lab.launchers import REPOSITORY
from mxnet.gluon.model_zoo import vision

pytestmark = pytest.mark.both_pythons

sys.path[:0] = [str(REPOSITORY / 'scripts'), str(REPOSITORY / 'examples')]

import word_lm  # noqa: E402
from lab import emulation  # noqa: E402
from lab.benchmark import (  # noqa: E402
    bounds,
    cli,
    exchange,
    gradients,
    report,
    shapes,
    testbeds,
    training,
    workloads,
)
from lab.benchmark.contender_job import ContenderJob  # noqa: E402
from lab.benchmark.interruption import Interrupted, Signals  # noqa: E402
from lab.processes import JobFailed, find_processes  # noqa: E402


def table(name):
    """First table of a workload."""
    return workloads.WORKLOADS[name].tables[0]


# ------------------------------------------------------------------------------------------- workloads

@pytest.mark.parametrize('name, dense, sparse', [
    ('lm1b', 9.4e6, 812.5e6), ('nmt', 94.1e6, 74.9e6), ('resnet50', 25.6e6, 0), ('inception_v3', 23.8e6, 0)])
def test_models_have_the_published_sizes(name, dense, sparse):
    workload = workloads.WORKLOADS[name]
    assert workload.dense_bytes / 4 == pytest.approx(dense, abs=0.05e6)
    assert workload.table_bytes / 4 == pytest.approx(sparse, abs=0.05e6)


@pytest.mark.parametrize('name, size, dropped', [('resnet50_v1', 224, '1x1 convolutions with a bias'),
                                                 ('inception_v3', 299, None)])
def test_image_models_have_the_layers_of_the_model_zoo(name, size, dropped):
    import mxnet as mx

    net = getattr(vision, name)()
    net.initialize()
    net(mx.nd.zeros((1, 3, size, size)))
    params = [param for param in net.collect_params().values() if param.grad_req != 'null'
              # Gluon's first ResNet keeps some biases that a batch normalisation follows; the paper has none.
              and not (dropped and 'conv' in param.name and param.name.endswith('bias'))]
    mine = {'resnet50_v1': shapes.resnet50, 'inception_v3': shapes.inception_v3}[name]()
    assert sorted(param.shape for param in params) == sorted(mine)


def test_lm1b_draws_what_it_says():
    workload = workloads.WORKLOADS['lm1b']
    drawn = workload.draw(1, 3)
    assert [len(drawn[one.name]) for one in workload.tables] == [2560, 8192 + 2560]
    candidates, targets = np.split(drawn['softmax'], [8192])
    assert len(np.unique(candidates)) == 8192 and len(np.unique(targets)) < 2560
    # Log-uniform: half of the ids below sqrt(rows) if they were not distinct; those below 32 are nearly all there.
    assert np.isin(np.arange(32), candidates).all()
    assert candidates.max() > 600000
    for ids in drawn.values():
        assert ids.dtype == np.int64 and ids.min() == 0 and ids.max() < 793470


def test_draws_depend_on_batch_and_worker_alone():
    workload = workloads.WORKLOADS['nmt']
    one = workload.draw(0, 1)
    for other, equal in (((0, 1), True), ((1, 1), False), ((0, 2), False)):
        assert np.array_equal(one['source'], workload.draw(*other)['source']) is equal
    assert np.array_equal(one['source'], workload.scaled(0.1).draw(0, 1)['source'])
    assert not np.array_equal(one['source'], one['target'])


def test_draws_of_a_small_table_stay_inside():
    small = workloads.WORKLOADS['lm1b'].shrunk(100000)
    for batch in range(workloads.BATCHES):
        for one in small.tables:
            ids = small.draw(batch, 0)[one.name]
            assert len(ids) == one.zipf + one.candidates and 0 <= ids.min() and ids.max() < one.rows


def test_width_scales_tables_and_dense_parameters():
    scaled = workloads.WORKLOADS['lm1b'].scaled(0.125)
    assert [one.shape for one in scaled.tables] == [(793470, 64)] * 2
    assert scaled.dense_bytes == 4 * 9445376 // 8  # 4.7 MB
    for factor in (0, 1.5, -1):
        with pytest.raises(ValueError, match='--width-scale'):
            workloads.WORKLOADS['lm1b'].scaled(factor)


# ------------------------------------------------------------------------------------------- bounds

def test_bound_of_dense_parameters_is_a_ring():
    workload = workloads.WORKLOADS['resnet50']
    bound = bounds.lower_bound(workload, hosts=4, workers=2, mbit_per_s=1000)
    assert bound.sent == bound.received == pytest.approx(1.5 * workload.dense_bytes)
    assert bound.seconds == pytest.approx(1.5 * workload.dense_bytes * 8 / 1e9)
    assert bound.rows == 0


def test_bound_of_a_table_by_counting():
    workload = workloads.Workload('one', (workloads.Table('t', 50, 3, 20),), (), 'words', 1)
    hosts, workers = 3, 2
    sent = np.zeros((workloads.BATCHES, hosts))
    for batch in range(workloads.BATCHES):
        unions = [set(np.concatenate([workload.draw(batch, host * workers + i)['t'] for i in range(workers)]))
                  for host in range(hosts)]
        for host, union in enumerate(unions):
            others = sum(len(other) for i, other in enumerate(unions) if i != host)
            sent[batch, host] = 12 * (len(union) * 2 / 3 + others / 3)  # pushed away, and pulled by others
    bound = bounds.lower_bound(workload, hosts, workers)
    assert bound.sent == pytest.approx(sent.max(axis=1).mean()) and bound.seconds is None


def test_bound_of_the_published_shape():
    bound = bounds.lower_bound(workloads.WORKLOADS['lm1b'].scaled(0.125), hosts=8, workers=6, mbit_per_s=100)
    assert bound.rows == pytest.approx(38750, rel=0.02)
    assert bound.sent == pytest.approx(25.6e6, rel=0.02)
    assert bound.seconds == pytest.approx(2.05, rel=0.02)


def test_one_host_needs_no_link():
    assert bounds.lower_bound(workloads.WORKLOADS['recsys'], 1, 4).sent == 0


# ------------------------------------------------------------------------------------------- expected sums

@pytest.fixture
def small():
    """A workload small enough to add up in full."""
    return workloads.Workload('small', (workloads.Table('t', 30, 7, 12, 4), workloads.Table('u', 9, 2, 5)),
                              (workloads.Dense('a', (3, 2)), workloads.Dense('b', (5,))), 'words', 1)


def summed(workload, size, times):
    """Every sum, the slow way."""
    totals = {parameter.name: np.zeros(parameter.shape, np.float32) for parameter in workload.tables + workload.dense}
    for batch, count in times.items():
        for rank in range(size):
            drawn = workload.draw(batch, rank)
            for parameter in workload.tables:
                ids = np.unique(drawn[parameter.name])
                totals[parameter.name][ids] += count * gradients.row_pattern(rank, len(ids), parameter.width)
            for index, parameter in enumerate(workload.dense):
                totals[parameter.name] += count * gradients.dense_value(rank, index)
    return totals


@pytest.mark.parametrize('times', [{1: 1}, {0: 3, 1: 2, 3: 1}])
def test_expected_sums_are_those_of_adding_up(small, times):
    size, rank = 9, 2
    totals, expected = summed(small, size, times), gradients.Expected(small, size, times)
    checksums = {one.name: gradients.checksum(totals[one.name][np.unique(small.draw(2, rank)[one.name])])
                 for one in small.tables}
    checksums.update({one.name: gradients.checksum(totals[one.name]) for one in small.dense})
    assert gradients.differences(small, expected, rank, 2, checksums) == []
    for name in checksums:
        for wrong in ((0.0, 0.0), (checksums[name][0], checksums[name][1] * 1.001)):
            texts = gradients.differences(small, expected, rank, 2, dict(checksums, **{name: wrong}))
            assert len(texts) == 1 and texts[0].startswith('%s on worker 2' % name)


@pytest.mark.parametrize('wire', ['float16', 'int8'])
def test_sums_of_rounded_values_may_be_off_by_the_roundoff_and_no_more(small, wire):
    roundoff = gradients.ROUNDOFF[wire]
    past, step = gradients.Expected(small, 4, {0: 3, 1: 3}), gradients.Expected(small, 4, {1: 1})
    rounded = [past, step]
    checksums = {array.name: step.of_table(array, np.unique(small.draw(1, 0)[array.name])) for array in small.tables}
    checksums.update({array.name: step.of_dense(array, index) for index, array in enumerate(small.dense)})
    for array in small.dense:
        # The past holds six steps, the step one.
        for share, good in ((6.9, True), (7.1, False), (-6.9, True), (-7.1, False)):
            off = tuple(np.array(checksums[array.name]) * (1 + share * roundoff))
            texts = gradients.differences(small, step, 0, 1, dict(checksums, **{array.name: off}), rounded, roundoff)
            assert (texts == []) == good
            assert gradients.differences(small, step, 0, 1, dict(checksums, **{array.name: off}))
    for name in checksums:
        texts = gradients.differences(small, step, 0, 1, dict(checksums, **{name: (0.0, 0.0)}), rounded, roundoff)
        assert len(texts) == 1


# ------------------------------------------------------------------------------------------- report

def reading(rank, seconds, ends, **used):
    """Return the report of a worker."""
    return {'rank': rank, 'seconds': seconds, 'ends': ends, 'used': used, 'sums': {},
            'phases': {'pull': seconds / 2}}


def test_figures_of_one_round():
    figures = report.one_round([reading(0, 4.0, [1.0, 3.5], received=10, sent=40, cpu=6.0, busy=7.0),
                                reading(1, 4.4, [1.0, 3.0]), reading(2, 4.2, [1.0, 3.0], received=30, sent=20)], 2)
    assert figures['step_s'] == pytest.approx(2.2) and figures['steps_s'] == [1.0, 2.5]
    assert (figures['sent'], figures['received']) == (20, 15)
    assert (figures['cpu_s'], figures['busy_s']) == (3.0, 3.5)
    assert figures['phases'] == {'pull': pytest.approx(1.05)}
    assert figures['hosts'] == [{'sent': 20, 'received': 5}, {'sent': 10, 'received': 15}]


def one(step_s, steps_s, sent):
    """A round."""
    return {'step_s': step_s, 'steps_s': steps_s, 'sent': sent, 'received': sent, 'cpu_s': 1.0, 'busy_s': 1.5,
            'hosts': [], 'phases': {}}


def test_figures_over_rounds_and_their_table():
    contenders = {'hybrid': report.over_rounds([one(1.0, [0.9, 1.1], 5e6), one(3.0, [3.0], 7e6),
                                                one(2.0, [2.0], 6e6)], units=100),
                  'dist_sync': report.over_rounds([one(5.0, [4.0, 6.0], None)], units=100)}
    report.add_ratios(contenders)
    hybrid, other = contenders['hybrid'], contenders['dist_sync']
    assert (hybrid['step_s'], hybrid['fastest_s'], hybrid['slowest_s']) == (2.0, 0.9, 3.0)
    assert (hybrid['per_s'], hybrid['sent'], hybrid['ratio']) == (50, 6e6, 1)
    assert (other['ratio'], other['sent']) == (2.5, None)
    bound = report.bound_row(bounds.Bound(10, 4e6, 4e6, 0.5), units=100)
    run = {'hosts': 2, 'workers': 3, 'unit': 'words', 'contenders': contenders, 'bound': bound,
           'skipped': {'horovod_dense': 'too big'}}
    lines = [line.split() for line in report.table(run).splitlines()]
    assert lines[2] == ['hybrid', '2.000', '0.900-3.000', '50', '6.00', '6.00', '1.00', '1.00']
    assert lines[3] == ['dist_sync', '5.000', '4.000-6.000', '20', '-', '-', '1.00', '2.50']
    assert lines[4] == ['lower', 'bound', '0.500', '-', '200', '4.00', '4.00', '-', '-']
    assert len({len(line) for line in report.table(run).splitlines()[:3]}) == 1
    assert report.explain(run, {'cores': 1}) == ['horovod_dense left out: too big']
    json.dumps(run)


def test_without_hybrid_there_is_no_ratio():
    contenders = {'dist_sync': report.over_rounds([one(5.0, [5.0], 1)], units=1)}
    report.add_ratios(contenders)
    assert contenders['dist_sync']['ratio'] is None


def test_busy_cores_are_told():
    figures = report.over_rounds([dict(one(1.0, [1.0], 1), cpu_s=1.2, busy_s=1.9)], units=1)
    run = {'skipped': {}, 'contenders': {'hybrid': figures}}
    text, = report.explain(run, {'cores': 2})
    assert 'the 2 cores' in text and '1.20 s of CPU' in text and '0.70 s' in text
    assert report.explain(run, {'cores': 4}) == []


def test_a_lower_bound_without_a_link_has_no_time():
    assert report.bound_row(bounds.Bound(0, 0, 0, 0.0), 5)['per_s'] is None


# ------------------------------------------------------------------------------------------- the rest

def test_output_of_the_training_run():
    outputs = ['shakespeare: ...\nepoch 1: train loss 9.1 (sampled), validation perplexity 1.0, 900 words/s\n'
               'epoch 2: train loss 8.1 (sampled), validation perplexity 1.0, 1,234 words/s\n'
               'final test perplexity 512.3\n', 'another worker\n']
    assert training.read(outputs) == ([900.0, 1234.0], [1.0, 1.0], 512.3)
    with pytest.raises(JobFailed, match='neither words/s'):
        training.read(['Traceback'])


def test_time_to_a_perplexity():
    assert training.time_to(100, [2.0, 3.0, 4.0], [400, 200, 50]) == pytest.approx(7)
    assert training.time_to(200, [2.0, 3.0], [400, 200]) == 5
    assert training.time_to(500, [2.0, 3.0], [400, 200]) == 2
    assert training.time_to(100, [2.0, 3.0], [400, 200]) is None


@pytest.mark.parametrize('workers, steps, step_count', [(1, 1, 14), (8, 2, 2), (2, 10, 10), (48, 25, 25)])
def test_the_training_run_makes_the_steps_that_were_asked_for(workers, steps, step_count):
    tokens = training.tokens_for(workers, steps)
    columns = training.COLUMNS * workers
    assert (len(word_lm.batchify(np.arange(tokens), columns)) - 1) // training.WORDS == step_count
    # The example holds a tenth out, and predicts all rows of it but the first.
    assert len(word_lm.batchify(np.arange(tokens // 10), word_lm.EVAL_COLUMNS)) > 1


def test_a_grid_says_who_wins_where():
    def run(hosts, mbit, **seconds):
        contenders = {name: dict(one(value, [value], None), cpu_s=value / 4) for name, value in seconds.items()}
        return {'hosts': hosts, 'mbit': mbit, 'contenders': contenders, 'bound': {'step_s': 0.25} if mbit else None}
    lines = report.grid([run(2, 100.0, hybrid=0.5, dist_sync=1.0), run(4, 10000.0, hybrid=0.4, torch_sharded=0.3),
                         run(1, None, hybrid=0.1)]).split('\n')
    assert lines[0].split() == ['hosts', 'Mbit/s', 'hybrid', 'dist_sync', 'torch_sharded', 'lower', 'bound']
    assert lines[2].split() == ['2', '100', '*0.500', '(0.12)', '1.000', '(0.25)', '-', '0.250']
    assert lines[3].split() == ['4', '10000', '0.400', '(0.10)', '-', '*0.300', '(0.07)', '0.250']
    assert lines[4].split() == ['1', '-', '*0.100', '(0.03)', '-', '-', '-']


@pytest.mark.parametrize('argv', [['--contenders', 'hybrid,mpi'], ['--hosts', '0'], ['--mbit', '-1'],
                                  ['--workload', 'vgg'], ['--env', 'NAME'], ['--steps', 'x'], ['--steps', '0'],
                                  ['--workers', '2,4'], ['--steps', '10,20'], ['--width-scale', '2'],
                                  ['--width-scale', '0'], ['--mbit', 'inf'], ['--hosts', '2,27'],
                                  ['--mbit', '100,0'], ['--json', '.'], ['--json', 'missing/file'],
                                  ['--plot', 'missing/file.png']])
def test_wrong_arguments(argv, capsys):
    with pytest.raises(SystemExit):
        cli.parse(argv)
    assert argv[0] in capsys.readouterr().err


def test_arguments():
    args = cli.parse(['--hosts', '2,4', '--contenders', 'hybrid, dist_sync', '--env', 'A=b=c'])
    assert args.hosts == [2, 4] and args.contenders == ['hybrid', 'dist_sync'] and args.env == [['A', 'b=c']]


def test_as_many_hosts_as_wanted_where_none_is_emulated():
    assert cli.parse(['--hosts', '27', '--no-network']).hosts == [27]


def test_dense_tables_are_left_out_where_memory_is_short(monkeypatch):
    args = cli.parse(['--workload', 'recsys', '--no-network', '--hosts', '2', '--workers', '3'])
    needed = 2 * 6 * exchange.Exchange(args)._workload.table_bytes
    assert exchange.available_bytes() > 1 << 20
    for free, left_out in ((2 * needed + 1, False), (2 * needed - 1, True)):
        monkeypatch.setattr(exchange, 'available_bytes', lambda free=free: free)
        assert ('horovod_dense' in exchange.Exchange(args).skipped(2)) is left_out


class Kind:
    """Contenders that need no jobs; with three hosts they fail."""

    unit = 'words'

    def skipped(self, hosts):
        """None."""
        return {}

    def describe(self):
        """No model."""
        return 'nothing'

    def bound(self, hosts, mbit):
        """No bound."""

    def units(self, hosts):
        """A word for each host."""
        return hosts

    def told(self, contenders):
        """Nothing else."""
        return []

    def run(self, testbed, hosts, contender, check):
        """A round."""
        if hosts == 3:
            raise JobFailed('three hosts are too many')
        return one(1.0, [1.0], None)


def test_a_failure_loses_no_run_before_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, 'Exchange', lambda args: Kind())
    file = tmp_path / 'bench.json'
    file.write_text('of an earlier benchmark')
    assert cli.main(['--hosts', '1,2,3', '--no-network', '--contenders', 'hybrid', '--json', str(file)]) == 1
    assert 'three hosts' in capsys.readouterr().err
    assert [run['hosts'] for run in json.loads(file.read_text())['runs']] == [1, 2]
    assert os.listdir(str(tmp_path)) == ['bench.json']


def test_a_port_is_held_for_a_server_until_the_job_ends(signals):
    with ContenderJob(testbeds.Loopback(), 1, 1, 30.0, {}, signals.check) as job:
        address = '127.0.0.1', job.reserve_port()
        with socket.socket() as other, pytest.raises(OSError, match='in use'):
            other.bind(address)
        with socket.create_server(address):  # sets SO_REUSEADDR, as ps-lite does
            socket.create_connection(address, timeout=10).close()


def test_a_port_that_cannot_be_had_is_no_crash(signals):
    class Broken(testbeds.Loopback):
        def argv(self, host, argv):
            return ['false']

    with pytest.raises(JobFailed, match='no free port on localhost'), ContenderJob(
            Broken(), 1, 1, 30.0, {}, signals.check) as job:
        job.reserve_port()


def test_without_root_it_says_what_to_do(monkeypatch, capsys):
    monkeypatch.setattr('os.geteuid', lambda: 1000)
    assert cli.main(['--hosts', '2', '--contenders', 'hybrid']) == 1
    assert re.search('needs root.*--no-network', capsys.readouterr().err, re.DOTALL)


def test_a_missing_tool_is_named_by_its_package(monkeypatch):
    monkeypatch.setattr('os.geteuid', lambda: 0)
    with pytest.raises(emulation.EmulationError, match='this needs Debian packages.* some-package$'):
        emulation.find_tools({'no-such-tool': 'some-package', 'sh': 'dash'}, 'this')


# ------------------------------------------------------------------------------------------- signals and jobs

class SignalledAmidCleaningUp(testbeds.Loopback):
    """The host of a user that interrupts while a job is being ended."""

    def kill_processes(self):
        """Be interrupted."""
        os.kill(os.getpid(), signal.SIGTERM)


class JobOnly(ContenderJob):
    """A job of one process, which waits for its standard input."""

    def __enter__(self):
        self.start_worker(0, [sys.executable, '-c', 'input()'], {})
        return self


@contextlib.contextmanager
def interrupted(number):
    """Expects that a signal ends the block."""
    with pytest.raises(Interrupted) as caught:
        yield
    assert caught.value.number == number


@pytest.fixture
def signals():
    """Install the handlers that scripts/bench has while it runs; no signal is ignored, as it is in the background."""
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    with Signals() as installed:
        yield installed
    for number, handler in before.items():
        signal.signal(number, handler)


def until(condition):
    """Wait for something; the variables of a process, say, show only after a moment, when it is loaded."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def waiting(signals, testbed):
    return JobOnly(testbed, 1, 1, 30.0, {}, signals.check)


def test_a_signal_ends_a_job_that_waits(signals):
    with interrupted(signal.SIGINT), signals.deferred(), waiting(signals, testbeds.Loopback()) as job:
        os.kill(os.getpid(), signal.SIGINT)
        job.wait()
    assert not find_processes(job.marker) and not job.directory.exists()


def test_variables_of_the_command_line_win(signals):
    with JobOnly(testbeds.Loopback(), 1, 1, 30.0, {'A': 'extra'}, signals.check) as job:
        job.start_worker(1, [sys.executable, '-c', 'import os; print(os.environ["A"], os.environ["B"])'],
                         {'A': 'own', 'B': 1})
        while job._workers[1].poll() is None:
            time.sleep(0.05)
        assert job.outputs()[1] == 'extra 1\n'


def test_a_worker_whose_benchmark_is_gone_ends(signals):
    code = 'from lab.benchmark.worker import die_with_parent; die_with_parent(); input()'
    with JobOnly(testbeds.Loopback(), 1, 1, 30.0, {'MXHYBRID_BENCH_PARENT': '1'}, signals.check) as job:
        job.start_worker(1, [sys.executable, '-c', code], {})
        with pytest.raises(JobFailed, match='worker 1 on localhost ended .*\n.*the benchmark .* is gone'):
            job.wait()


def test_a_process_that_shows_no_variables_is_ended_too(signals):
    # As any does for a moment when it starts.
    argv = ['env', '-i', sys.executable, '-c', 'import time; time.sleep(600)']
    with JobOnly(testbeds.Loopback(), 1, 1, 30.0, {}, signals.check) as job:
        job.start_helper('helper', 0, argv, {})
        until(lambda: [process.pid for process in find_processes(job.marker)] == [job._workers[0].pid])
        assert job._helpers[0].poll() is None
    assert job._helpers[0].poll() == -signal.SIGKILL


def test_a_signal_amid_the_cleaning_up_waits_for_its_end(signals):
    with interrupted(signal.SIGTERM):
        with signals.deferred(), waiting(signals, SignalledAmidCleaningUp()) as job:
            until(lambda: find_processes(job.marker))
        raise AssertionError('the signal was forgotten')
    assert not find_processes(job.marker) and not job.directory.exists()


def test_a_signal_ends_at_once_what_leaves_nothing_behind(signals):
    with interrupted(signal.SIGHUP):
        os.kill(os.getpid(), signal.SIGHUP)
        raise AssertionError('the signal was forgotten')


def test_a_signal_that_was_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            signals.check()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
