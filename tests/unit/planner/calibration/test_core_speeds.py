"""Speeds by the number of busy cores, CPU seconds of other processes, and seconds that are shared out."""
import os
import subprocess
import sys
import time

import pytest

from mxhybrid.planner.calibration.core_speeds import CpuSeconds, busy_counts, others_share, speeds_by_count
from mxhybrid.planner.calibration.cpu_meter import TimeBudget, process_seconds, typical_round
from mxhybrid.planner.calibration.step_benchmark import StepBenchmark, StepTimes, slowdowns


@pytest.mark.parametrize('most, counts', [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 8]), (16, [1, 2, 8, 16]),
                                          (96, [1, 2, 8, 96])])
def test_one_core_all_and_some_between_are_measured(most, counts):
    assert busy_counts(most) == counts


def test_times_between_are_interpolated():
    assert speeds_by_count({1: 1.0}, 1) == (1.0,)
    assert speeds_by_count({1: 1.0, 2: 0.8}, 2) == (1.0, 0.8)
    assert speeds_by_count({1: 1.0, 4: 0.5}, 4) == pytest.approx((1.0, 3 / 4, 3 / 5, 0.5))
    assert speeds_by_count({1: 1.0, 2: 0.9}, 3) == pytest.approx((1.0, 0.9, 0.9))


def test_no_core_is_faster_since_others_are_busy():
    assert speeds_by_count({1: 0.9, 2: 1.15}, 2) == pytest.approx((0.9, 0.9))
    assert speeds_by_count({1: 1.0, 2: 0.7, 4: 0.8}, 4) == pytest.approx((1.0, 0.7, 0.7, 0.7))


def test_processes_of_the_job_are_no_other_programs():
    """Two workers share two processors for 10 s, a third one has one of its own on which others compute."""
    processors = [('boot', (0, 1), 2), ('boot', (0, 1), 2), ('other', (0,), 1)]
    before = [CpuSeconds(100.0, 50.0, 7.0), CpuSeconds(100.0, 50.0, 3.0), CpuSeconds(5.0, 1.0, 1.0)]
    after = [CpuSeconds(110.0, 66.0, 13.0), CpuSeconds(110.0, 66.0, 12.0), CpuSeconds(15.0, 8.0, 4.0)]
    assert others_share(processors, before, after) == pytest.approx([1 / 20, 1 / 20, 0.4])
    assert others_share(processors[:1], before[:1], [CpuSeconds(110.0, 52.0, 13.0)]) == [0.0]


def test_slowdowns_compare_repeats_that_were_made_in_turn():
    """The machine became twice as slow for the last repeat, and another program disturbed one of the others."""
    alone = [StepTimes(1.0, 2.0), StepTimes(1.0, 2.0), StepTimes(2.0, 4.0)]
    busy = [StepTimes(1.1, 2.6), StepTimes(1.5, 2.6), StepTimes(2.2, 5.2)]
    assert slowdowns(busy, alone) == pytest.approx((1.1, 1.3))


def test_steps_of_both_kinds_take_time():
    assert all(0 < seconds < 10 for seconds in StepBenchmark().run())


@pytest.mark.both_pythons
def test_seconds_of_this_process():
    before = time.process_time()
    found = process_seconds(os.getpid())
    assert before <= found <= time.process_time()


@pytest.mark.both_pythons
def test_seconds_of_another_process():
    program = 'import sys, time\nwhile time.process_time() < 0.3: pass\nprint(time.process_time(), flush=True)\ninput()'
    with subprocess.Popen([sys.executable, '-c', program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        told = float(process.stdout.readline())
        assert process_seconds(process.pid) == pytest.approx(told, abs=0.1) and told >= 0.3
        process.communicate(b'\n', timeout=30)
    assert process_seconds(process.pid) == process_seconds(0) == 0


@pytest.mark.both_pythons
def test_latency_is_a_difference_of_like_rounds():
    # CPU seconds, seconds on the clock, CPU seconds of the script: in two rounds the worker came last and did not wait.
    rounds = [[1.0, 1.0, 0.5], [1.2, 1.5, 0.6], [1.1, 1.4, 0.5], [1.2, 1.6, 0.7], [1.3, 1.1, 0.6]]
    core, elapsed, script = typical_round(rounds)
    assert (core, elapsed, script) == (1.2, 1.4, 0.6)
    assert elapsed - core > 0


def test_time_that_is_left_over_goes_to_later_parts():
    now_s = [100.0]
    budget = TimeBudget(10.0, {'one': 1, 'other': 3, 'last': 1}, lambda: now_s[0])
    budget.begin('one', 2)
    assert budget.next_seconds() == 1.0
    now_s[0] += 0.5
    assert budget.next_seconds() == 1.5
    now_s[0] += 0.5
    budget.begin('other', 7)
    assert [budget.next_seconds() for _ in range(8)] == pytest.approx([7 / 7, 7 / 6, 7 / 5, 7 / 4, 7 / 3, 7 / 2, 7, 7])
    now_s[0] += 7.5  # half a second of the last part
    assert budget.next_seconds() == 0.0 and budget.elapsed == 8.5
    budget.begin('last', 0)
    assert budget.next_seconds() == 1.5
    now_s[0] += 9
    assert budget.next_seconds() == 0.0
