"""The benchmark of a pipeline: its efficiency, its arguments, and hosts with a small share of a processor."""
import argparse

import pytest
from lab.benchmark import cli, limits
from lab.benchmark.pipeline import ALONE, CONTENDERS, Pipeline, efficiency, efficiency_sentence
from lab.processes import JobFailed


def test_an_ideal_pipeline_has_an_efficiency_of_one():
    assert efficiency(11 / 8, [1.0, 1.0, 1.0, 1.0], 8) == pytest.approx(1.0)
    assert efficiency(2 * 11 / 8, [0.5, 1.0, 0.9, 1.0], 8) == pytest.approx(0.5)


def test_the_sentence_names_stages_and_the_ideal():
    sentence = efficiency_sentence('1f1b', 1.6, [0.9, 1.0, 0.95, 1.0], 8)
    assert sentence == ('1f1b: its 4 stages take 0.900, 1.000, 0.950, 1.000 s alone; the slowest one computes in 0.62 '
                        'of a step of 1.600 s, and in 0.73 at best (m / (m + s - 1)): efficiency 0.86 of that')


def test_stages_alone_are_medians_of_rounds_and_forgotten():
    kind = Pipeline(argparse.Namespace(micro_batches=8))
    kind._alone = [[1.0, 2.0], [3.0, 2.0], [2.0, 9.0]]
    told = kind.told({name: {'step_s': 4.0} for name in CONTENDERS})
    assert [sentence.split(':')[0] for sentence in told] == [name for name in CONTENDERS if name != ALONE]
    assert all('take 2.000, 2.000 s alone' in sentence for sentence in told) and kind._alone == []


def test_schedules_that_learn_something_else_end_the_benchmark():
    kind = Pipeline(argparse.Namespace(micro_batches=8))
    kind._compare(4, '1f1b', 'schedule', [{'sums': {'loss': 2.0}}, {'sums': {'loss': 3.0}}], 1e-4)
    kind._compare(4, 'gpipe', 'schedule', [{'sums': {'loss': 2.5}}, {'sums': {'loss': 2.5}}], 1e-4)
    with pytest.raises(JobFailed, match='gpipe has a loss of 2.6 after an update, a schedule before it has 2.5'):
        kind._compare(4, 'gpipe', 'schedule', [{'sums': {'loss': 2.6}}], 1e-4)


@pytest.mark.parametrize('arguments, words', [
    (['--micro-batches', '3'], '3 does not divide the 16 samples of a step: give 1, 2, 4, 8 or 16'),
    (['--micro-batches', '0'], 'invalid'), (['--share', '0'], '0 is not above 0 and at most 1'),
    (['--share', '2'], '2 is not above 0 and at most 1')])
def test_bad_arguments_are_refused(arguments, words, capsys):
    with pytest.raises(SystemExit):
        cli.parse(['--workload', 'pipeline'] + arguments)
    assert words in capsys.readouterr().err


@pytest.mark.parametrize('share, period_us, quota_us', [(0.2, 5000, 1000), (0.8, 2500, 2000)])
def test_a_host_may_have_a_share_of_a_processor(share, period_us, quota_us, monkeypatch, tmp_path):
    monkeypatch.setattr(limits, '_CGROUP', tmp_path)
    testbed = limits.Limited(2, 100.0, 'reno', share)
    testbed._make_groups()
    groups = sorted(tmp_path.iterdir())
    assert len(groups) == 2
    for group in groups:
        assert (group / 'cpu.cfs_period_us').read_text() == str(period_us)
        assert (group / 'cpu.cfs_quota_us').read_text() == str(quota_us)
