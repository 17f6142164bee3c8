"""CPU seconds of other processes, and the typical one of several rounds."""
import os
import subprocess
import sys
import time

import pytest

from mxhybrid.planner.calibration.cpu_meter import TimeBudget, process_seconds, typical_round

pytestmark = pytest.mark.both_pythons


def test_seconds_of_this_process():
    before = time.process_time()
    found = process_seconds(os.getpid())
    assert before <= found <= time.process_time()


def test_seconds_of_another_process():
    program = 'import sys, time\nwhile time.process_time() < 0.3: pass\nprint(time.process_time(), flush=True)\ninput()'
    with subprocess.Popen([sys.executable, '-c', program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        told = float(process.stdout.readline())
        assert process_seconds(process.pid) == pytest.approx(told, abs=0.1) and told >= 0.3
        process.communicate(b'\n', timeout=30)
    assert process_seconds(process.pid) == 0


def test_a_process_that_cannot_be_seen():
    assert process_seconds(0) == 0


def test_latency_is_the_difference_of_times_of_the_same_kind_of_round():
    # CPU seconds, seconds on the clock, CPU seconds of the script: in two rounds the worker came last and did not wait.
    rounds = [[1.0, 1.0, 0.5], [1.2, 1.5, 0.6], [1.1, 1.4, 0.5], [1.2, 1.6, 0.7], [1.3, 1.1, 0.6]]
    core, elapsed, script = typical_round(rounds)
    assert (core, elapsed, script) == (1.2, 1.4, 0.6)
    assert elapsed - core > 0


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_time_that_is_left_over_goes_to_later_parts():
    clock = Clock()
    budget = TimeBudget(10.0, {'one': 1, 'other': 3, 'last': 1}, clock)
    budget.begin('one', 2)
    assert budget.next_seconds() == 1.0
    clock.now += 0.5
    assert budget.next_seconds() == 1.5
    clock.now += 0.5
    budget.begin('other', 7)
    assert [budget.next_seconds() for _ in range(8)] == pytest.approx([7 / 7, 7 / 6, 7 / 5, 7 / 4, 7 / 3, 7 / 2, 7, 7])
    clock.now += 7.5  # half a second of the last part
    assert budget.next_seconds() == 0.0 and budget.elapsed == 8.5
    budget.begin('last', 0)
    assert budget.next_seconds() == 1.5
    clock.now += 9
    assert budget.next_seconds() == 0.0
