"""The pieces of work by which machines are compared, and disturbances of their timing."""
import os
import time

import pytest

from mxhybrid.planner.profiling import core_benchmark
from mxhybrid.planner.profiling.core_benchmark import CoreBenchmark, KernelTimes, benchmark_result, run_core_benchmark
from mxhybrid.planner.profiling.operator_profiler import OperatorProfiler
from mxhybrid.planner.profiling.profile_cache import read_profiles
from mxhybrid.planner.profiling.timer import PassSeconds

from .networks import operators, place


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


class Machine:
    """Batches and parts of a machine that is as fast and as busy as is said; a part takes a second where it is new."""

    def __init__(self, monkeypatch):
        self.slower, self.problem = 1.0, ''
        monkeypatch.setattr('mxhybrid.planner.profiling.operator_profiler.TimingBatch', lambda: self)
        monkeypatch.setattr('mxhybrid.planner.profiling.operator_profiler.time_shard',
                            lambda program: PassSeconds(self.slower, 2 * self.slower))

    @property
    def kernel_times(self):
        return KernelTimes(0.001 * self.slower, 0.002 * self.slower, 0.003 * self.slower)

    def end(self):
        return self.problem


def test_the_reference_is_timed_with_each_batch(images, tmp_path, monkeypatch):
    graph, path, machine = images.graph, str(tmp_path / 'profiles.json'), Machine(monkeypatch)
    first, second, third = operators(images, 'Convolution')
    profiles = OperatorProfiler(path)
    assert profiles.shard_seconds(graph, first, place(graph, first)) == (1, 2)
    profiles.save()
    assert read_profiles(path)['reference']['seconds'] == [0.001, 0.002, 0.003]
    machine.slower = 1.25
    assert profiles.shard_seconds(graph, second, place(graph, second)) == pytest.approx((1, 2))
    # Another process finds the machine as slow, and the stored times unchanged.
    again = OperatorProfiler(path)
    half = place(graph, third, d2=(0, 4))
    assert again.shard_seconds(graph, third, half) == pytest.approx((1, 2))
    assert again.kernel_times() == (0.001, 0.002, 0.003)
    again.save()
    assert OperatorProfiler(path, measure=False).shard_seconds(graph, third, half) == pytest.approx((1, 2))
    assert read_profiles(path)['reference']['seconds'] == [0.001, 0.002, 0.003]


def test_times_of_a_busy_machine_are_not_kept(images, tmp_path, monkeypatch, caplog):
    graph, path, machine = images.graph, str(tmp_path / 'profiles.json'), Machine(monkeypatch)
    first, second, third = ((one, place(graph, one)) for one in operators(images, 'Convolution')[:2] + operators(
        images, 'BatchNorm'))
    machine.slower, machine.problem = 1.3, 'other programs use 50 % of the processors'
    profiles = OperatorProfiler(path)
    for pair in (first, second):
        profiles.shard_seconds(graph, *pair)
        profiles.save()
    assert not os.path.exists(path) and profiles.measured == 2
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1 and path in messages[0]
    assert 'busy: other programs use 50 % of the processors' in messages[0]
    # It uses them nevertheless, and times of the quiet machine are stored.
    machine.slower, machine.problem = 1.0, ''
    profiles.shard_seconds(graph, *third)
    profiles.save()
    assert len(read_profiles(path)['parts']) == 1 and profiles.measured == 3
    profiles.shard_seconds(graph, *first)
    assert profiles.measured == 3
    machine.problem = 'other programs use 50 % of the processors'
    keeping = OperatorProfiler(path, keep_busy=True)
    keeping.shard_seconds(graph, *first)
    keeping.save()
    assert len(read_profiles(path)['parts']) == 2 and len(caplog.records) == 1


def test_a_batch_that_something_disturbs_says_so(monkeypatch):
    readings = []
    monkeypatch.setattr(core_benchmark, 'run_core_benchmark', lambda *_: readings.pop(0))
    monkeypatch.setattr(core_benchmark, '_MOVED', 0.1)
    monkeypatch.setattr(core_benchmark, 'BUSY_SHARE', 0.1)
    quiet, slow = KernelTimes(1, 1, 1), KernelTimes(1.2, 1.2, 1.2)
    share = [0.0]
    monkeypatch.setattr(core_benchmark.OtherPrograms, 'share', lambda self: share[0])
    for first, last, others, words in [
            (quiet, quiet, 0.0, ''), (quiet, slow, 0.0, 'its speed changed by a factor of 0.83 meanwhile'),
            (slow, quiet, 0.0, 'its speed changed by a factor of 1.20 meanwhile'),
            (quiet, quiet, 0.3, 'other programs used 30 % of the processors')]:
        readings[:] = [benchmark_result([first], 0.0), benchmark_result([last], 0.0)]
        batch, share[0] = core_benchmark.TimingBatch(), others
        assert batch.kernel_times == first and batch.end() == words
