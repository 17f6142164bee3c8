"""The benchmark's figures and tables, runs of training, formulas beside measurements, and starts."""
import argparse
import json

import numpy as np
import pytest
from lab.benchmark import bounds, cli, layers, report, starts, training
from lab.benchmark.layers_formula import communication
from lab.processes import JobFailed

from ...helpers.planned_networks import cluster

pytestmark = pytest.mark.both_pythons


def round_figures(step_s, steps_s, sent):
    """Return the figures of a round: its mean step, its steps, and the bytes that were sent and received."""
    return {'step_s': step_s, 'steps_s': steps_s, 'sent': sent, 'received': sent, 'cpu_s': 1.0, 'busy_s': 1.5,
            'hosts': [], 'phases': {}}


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


def test_figures_over_rounds_and_their_table():
    contenders = {'hybrid': report.over_rounds([round_figures(1.0, [0.9, 1.1], 5e6), round_figures(3.0, [3.0], 7e6),
                                                round_figures(2.0, [2.0], 6e6)], units=100),
                  'dist_sync': report.over_rounds([round_figures(5.0, [4.0, 6.0], None)], units=100)}
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
    assert lines[0][0] == 's/step' and report.table(dict(run, width=0.5)).startswith('width 0.5 ')
    assert report.explain(run, {'cores': 1}) == ['horovod_dense left out: too big']
    json.dumps(run)


def test_without_hybrid_there_is_no_ratio():
    contenders = {'dist_sync': report.over_rounds([round_figures(5.0, [5.0], 1)], units=1)}
    report.add_ratios(contenders)
    assert contenders['dist_sync']['ratio'] is None


def test_busy_cores_are_told():
    figures = report.over_rounds([dict(round_figures(1.0, [1.0], 1), cpu_s=1.2, busy_s=1.9)], units=1)
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
def test_the_training_run_makes_the_requested_steps(workers, steps, step_count, monkeypatch):
    monkeypatch.syspath_prepend(str(training.EXAMPLES))
    import word_lm
    tokens = training.tokens_for(workers, steps)
    columns = training.COLUMNS * workers
    assert (len(word_lm.batchify(np.arange(tokens), columns)) - 1) // training.WORDS == step_count
    # The example holds a tenth out, and predicts all rows of it but the first.
    assert len(word_lm.batchify(np.arange(tokens // 10), word_lm.EVAL_COLUMNS)) > 1


def test_a_grid_says_who_wins_where():
    def run(hosts, mbit, **seconds):
        contenders = {name: dict(round_figures(value, [value], None), cpu_s=value / 4)
                      for name, value in seconds.items()}
        return {'hosts': hosts, 'mbit': mbit, 'contenders': contenders, 'bound': {'step_s': 0.25} if mbit else None}
    runs = [run(2, 100.0, hybrid=0.5, dist_sync=1.0), run(4, 10000.0, hybrid=0.4, torch_sharded=0.3),
            run(1, None, hybrid=0.1)]
    lines = report.grid(runs).split('\n')
    assert report.grid([dict(runs[0], width=0.25)]).startswith('hosts, width 0.25 ')
    assert lines[0].split() == ['hosts', 'Mbit/s', 'hybrid', 'dist_sync', 'torch_sharded', 'lower', 'bound']
    assert lines[2].split() == ['2', '100', '*0.500', '(0.12)', '1.000', '(0.25)', '-', '0.250']
    assert lines[3].split() == ['4', '10000', '0.400', '(0.10)', '-', '*0.300', '(0.07)', '0.250']
    assert lines[4].split() == ['1', '-', '*0.100', '(0.03)', '-', '-', '-']


def test_the_table_has_medians_and_ratios_to_horovod(monkeypatch, capsys):
    readings = {'hybrid': iter([(5.0, 9.0), (7.0, 8.0), (6.0, 7.0)]),
                'horovod': iter([(4.0, 4.0), (3.0, 5.0), (9.0, 3.0)])}
    monkeypatch.setattr(starts, 'measure', lambda args, name: dict(zip(('seconds', 'cpu_s'), next(readings[name]))))
    runs = starts.run(argparse.Namespace(workers=6, rounds=3), lambda text: None)
    assert len(runs) == 6 and runs[0] == {'seconds': 5.0, 'cpu_s': 9.0, 'contender': 'hybrid'}
    lines = capsys.readouterr().out.splitlines()
    assert '6 workers' in lines[0]
    hybrid, = [line for line in lines if line.startswith('hybrid')]
    assert hybrid.split() == ['hybrid', '6.0', '8.0', '1.50', 'x', '2.00', 'x']


def test_the_command_line_takes_it(monkeypatch):
    monkeypatch.setattr(cli, 'run_starts', lambda args, say: [{'workers': args.workers}])
    assert cli.main(['--workload', 'start', '--workers', '3']) == 0


def test_formulas_of_the_network_that_is_trained():
    costs = communication('layers_dense', 16, cluster(hosts=4))
    dense = 4096 * 4097 + 1000 * 4097
    convolutions = 32 * (3 * 25 + 1) + 64 * (32 * 9 + 1)

    def words(count):
        return 0.75 * 4 * count / costs['bytes_per_s']
    # Each layer is an allreduce: two passes of two messages among four.
    assert costs['data'] == pytest.approx(4 * 4 * costs['alpha_s'] + 2 * words(dense + convolutions))
    # Forward an allgather of outputs, backward an allreduce of inputs; outputs of convolutions go to all ranks.
    moved = 16 * (4096 + 1000 + 2 * (4096 + 4096) + 4096)
    assert costs['split'] == pytest.approx((2 * 4 + 2 * (2 + 4) + 2) * costs['alpha_s'] + 2 * words(convolutions)
                                           + words(moved))


def test_gains_beside_formulas():
    formula = {'data': 10.0, 'split': 0.2, 'alpha_s': 0.001, 'bytes_per_s': 1e7}
    sentence = layers.gain_sentence('grid', {'step_s': 12.0, 'cpu_s': 2.0}, {'step_s': 1.5, 'cpu_s': 1.6}, formula, 2)
    assert sentence.startswith('grid is 8.0 times as fast as data')
    assert sentence.endswith('a step gains 11.0 times: measured is 73 % of that')  # (10 + 1) / (0.2 + 0.8)
