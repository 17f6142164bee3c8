"""The drawing of a pipeline: a box for each pass, and the efficiency of the schedule."""
import xml.etree.ElementTree as ElementTree

import pytest
from lab.pipeline_timeline import MICRO_BATCHES, STAGES, Span, drawing, efficiency, spans_of

from ..parallel.runtime.test_schedule import clock_of


def scheduled():
    """Return the passes of a step in which transfers take no time."""
    return [Span(stage, is_forward, micro_batch, end - (1 if is_forward else 2), end)
            for (stage, is_forward, micro_batch), end in clock_of('1f1b', STAGES, MICRO_BATCHES).items()]


def test_the_efficiency_is_that_of_the_schedule():
    assert efficiency(scheduled()) == pytest.approx(MICRO_BATCHES / (MICRO_BATCHES + STAGES - 1))


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
