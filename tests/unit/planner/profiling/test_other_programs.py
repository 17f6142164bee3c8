"""The share of other programs, from the kernel's counters."""
import os

import pytest

from mxhybrid.planner.profiling import other_programs
from mxhybrid.planner.profiling.other_programs import OtherPrograms, processor_seconds

pytestmark = pytest.mark.both_pythons

TICKS = os.sysconf('SC_CLK_TCK')


def write_stat(root, *seconds, others=0.0):
    """A /proc/stat of processors that have worked for some seconds, a quarter of it in the kernel."""
    (root / 'proc').mkdir(exist_ok=True)
    rows = ['cpu%d %d 0 %d %d 5 700 %d %d 0 0' % (number, 0.75 * one * TICKS, 0.25 * one * TICKS, 999 * TICKS,
                                                  800, others * TICKS) for number, one in enumerate(seconds)]
    (root / 'proc/stat').write_text('\n'.join(['cpu 1 2 3 4 5 6 7 8 9 10'] + rows + ['intr 5 0 1', 'ctxt 5', '']))


def test_seconds_are_those_of_the_processors_that_count(tmp_path):
    write_stat(tmp_path, 4.0, 8.0, 16.0, others=1.0)
    assert processor_seconds([0], str(tmp_path)) == pytest.approx(5, abs=0.1)
    assert processor_seconds([2, 1], str(tmp_path)) == pytest.approx(26, abs=0.1)


@pytest.mark.parametrize('text', [None, 'cpu0 1 2', 'cpu0 a b c d e f g h', 'cpu1 1 2 3 4 5 6 7 8'])
def test_missing_answers_of_the_kernel_are_nothing(tmp_path, text):
    (tmp_path / 'proc').mkdir()
    if text is not None:
        (tmp_path / 'proc/stat').write_text(text)
    assert processor_seconds([0], str(tmp_path)) is None
    assert OtherPrograms(root=str(tmp_path)).share() == 0.0


def test_the_share_of_others_is_without_the_own_one(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(other_programs.os, 'sched_getaffinity', lambda _: {0, 1})
    monkeypatch.setattr(other_programs.time, 'perf_counter', lambda: clock[0])
    own = [7.0]
    write_stat(tmp_path, 50.0, 50.0)
    programs = OtherPrograms(lambda: own[0], str(tmp_path))
    clock[0], own[0] = 104.0, 10.0
    write_stat(tmp_path, 53.0, 51.0)  # 4 s in all, 3 of them own ones, of 8 that there were
    assert programs.share() == pytest.approx(1 / 8)
    write_stat(tmp_path, 50.5, 50.0)  # counted less often than the own ones
    assert programs.share() == 0.0


def test_this_machine_says_what_its_processors_do():
    assert processor_seconds(os.sched_getaffinity(0)) > 0
    assert 0 <= OtherPrograms().share() <= 1
