"""The benchmark of a pipeline and its drawing: efficiency, and hosts with a small share of a processor."""
import argparse
import xml.etree.ElementTree as ElementTree

import pytest
from lab.benchmark import testbeds
from lab.benchmark.pipeline import ALONE, CONTENDERS, Pipeline, efficiency, efficiency_sentence
from lab.pipeline_timeline import MICRO_BATCHES, STAGES, Span, drawing, efficiency as efficiency_of_spans, spans_of
from lab.processes import JobFailed

from ..parallel.runtime.test_schedule import clock_of


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


@pytest.mark.parametrize('share, period_us, quota_us', [(0.2, 5000, 1000), (0.8, 2500, 2000)])
def test_a_host_may_have_a_share_of_a_processor(share, period_us, quota_us, monkeypatch, tmp_path):
    monkeypatch.setattr(testbeds, '_CGROUP', tmp_path)
    testbeds.Limited(2, 100.0, 'reno', share)._make_groups()
    groups = sorted(tmp_path.iterdir())
    assert len(groups) == 2
    for group in groups:
        assert (group / 'cpu.cfs_period_us').read_text() == str(period_us)
        assert (group / 'cpu.cfs_quota_us').read_text() == str(quota_us)


def scheduled():
    """Return the passes of a step in which transfers take no time."""
    return [Span(stage, is_forward, micro_batch, end - (1 if is_forward else 2), end)
            for (stage, is_forward, micro_batch), end in clock_of('1f1b', STAGES, MICRO_BATCHES).items()]


def test_the_efficiency_is_that_of_the_schedule():
    assert efficiency_of_spans(scheduled()) == pytest.approx(MICRO_BATCHES / (MICRO_BATCHES + STAGES - 1))


def test_there_is_a_box_for_each_pass():
    image = ElementTree.fromstring(drawing(scheduled()))
    boxes = [box for box in image if box.tag.endswith('rect')][1:]
    assert len(boxes) == 2 * STAGES * MICRO_BATCHES
    numbers = sorted(text.text for text in image if text.text and text.text.isdigit())
    assert numbers == sorted([str(at) for at in range(MICRO_BATCHES)] * 2 * STAGES)


def test_the_last_step_counts():
    earlier, last = ([(is_forward, start + at, start + at + 0.5) for at in range(MICRO_BATCHES)
                      for is_forward in (True, False)] for start in (0.0, 100.0))
    spans = spans_of({0: earlier + last})
    assert len(spans) == 2 * MICRO_BATCHES and min(span.begin for span in spans) == 100.0
