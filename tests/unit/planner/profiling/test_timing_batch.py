"""Batches of times: the speed of the machine, and other programs that use its processors."""
import os

import pytest

from mxhybrid.planner.profiling import timing_batch
from mxhybrid.planner.profiling.core_benchmark import KernelTimes, benchmark_result
from mxhybrid.planner.profiling.operator_profiler import OperatorProfiler
from mxhybrid.planner.profiling.profile_cache import read_profiles
from mxhybrid.planner.profiling.timer import PassSeconds

from .networks import operators, place


class Machine:
    """Batches and parts of a machine that is as fast and as busy as is said; a part takes a second where it is new."""

    def __init__(self, monkeypatch):
        self.slower, self.problem, self.batches = 1.0, '', 0
        monkeypatch.setattr('mxhybrid.planner.profiling.operator_profiler.TimingBatch', lambda: self)
        monkeypatch.setattr('mxhybrid.planner.profiling.operator_profiler.time_shard',
                            lambda program: PassSeconds(self.slower, 2 * self.slower))

    @property
    def kernel_times(self):
        self.batches += 1
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
    monkeypatch.setattr(timing_batch, 'run_core_benchmark', lambda *_: readings.pop(0))
    monkeypatch.setattr(timing_batch, '_MOVED', 0.1)
    monkeypatch.setattr(timing_batch, 'BUSY_SHARE', 0.1)
    quiet, slow = KernelTimes(1, 1, 1), KernelTimes(1.2, 1.2, 1.2)
    share = [0.0]
    monkeypatch.setattr(timing_batch.OtherPrograms, 'share', lambda self: share[0])
    for first, last, others, words in [
            (quiet, quiet, 0.0, ''), (quiet, slow, 0.0, 'its speed changed by a factor of 0.83 meanwhile'),
            (slow, quiet, 0.0, 'its speed changed by a factor of 1.20 meanwhile'),
            (quiet, quiet, 0.3, 'other programs used 30 % of the processors')]:
        readings[:] = [benchmark_result([first], 0.0), benchmark_result([last], 0.0)]
        batch, share[0] = timing_batch.TimingBatch(), others
        assert batch.kernel_times == first and batch.end() == words
