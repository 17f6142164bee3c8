"""The pieces of work by which machines are compared, and disturbances of their timing."""
import time

import pytest

from mxhybrid.planner.profiling import core_benchmark
from mxhybrid.planner.profiling.core_benchmark import CoreBenchmark, KernelTimes, benchmark_result, run_core_benchmark


@pytest.fixture(autouse=True)
def quiet_machine():
    """Here machines are as busy as they are, unlike in other tests of this folder."""


def test_the_speed_of_a_machine_beside_another_one():
    slow, fast = KernelTimes(0.02, 0.04, 0.01), KernelTimes(0.01, 0.01, 0.01)
    assert fast.speed_relative_to(slow) == pytest.approx(2)
    assert slow.speed_relative_to(fast) == pytest.approx(0.5)
    assert slow.speed_relative_to(slow) == 1


def test_a_repeat_takes_the_time_that_the_pieces_take(monkeypatch):
    monkeypatch.setattr(core_benchmark, 'REPEAT_S', 0.0)
    work = CoreBenchmark()
    before = time.perf_counter()
    found = work.run()
    took = time.perf_counter() - before
    assert all(seconds > 0 for seconds in found)
    assert sum(found) < took


def test_repeats_are_spread_over_seconds_behind_a_warm_up(monkeypatch):
    repeats = []

    class Work:
        def run(self):
            repeats.append(time.perf_counter())
            return KernelTimes(3.0 - len(repeats), 1.0, 1.0)
    monkeypatch.setattr(core_benchmark, 'CoreBenchmark', Work)
    assert run_core_benchmark(2).times == KernelTimes(1.0, 1.0, 1.0) and len(repeats) == 2
    assert core_benchmark.REPEATS * core_benchmark.REPEAT_S >= 2


def test_the_least_of_pieces_counts_with_its_spread():
    quiet, slow = KernelTimes(0.01, 0.02, 0.03), KernelTimes(0.02, 0.04, 0.06)
    found = benchmark_result([slow, quiet, slow, quiet, quiet], 0.02)
    assert found.times == quiet and found.spread == pytest.approx(0) and found.problem == ''
    found = benchmark_result([slow, slow, quiet, slow], 0.02)
    assert found.times == quiet and found.spread == pytest.approx(1)
    assert found.problem == 'repeats of the same work differ by 100 %'
    assert benchmark_result([KernelTimes(0.01, 0.04, 0.03), KernelTimes(0.02, 0.02, 0.03)], 0.0).times == quiet


def test_other_programs_are_a_problem():
    assert benchmark_result([KernelTimes(1, 1, 1)], 0.45).problem == 'other programs use 45 % of the processors'
    assert benchmark_result([KernelTimes(1, 1, 1)], 0.05).problem == ''
