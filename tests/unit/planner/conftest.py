"""Makes timings of tests independent of other programs of the machine."""
import pytest

from mxhybrid.planner.profiling import core_benchmark


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch):
    """The reference is timed quickly, and no machine is busy."""
    monkeypatch.setattr(core_benchmark, 'REPEAT_S', 0.0)
    monkeypatch.setattr(core_benchmark.BenchmarkResult, 'problem', '')
    monkeypatch.setattr(core_benchmark, 'BUSY_SHARE', 1.0)
    monkeypatch.setattr(core_benchmark, '_MOVED', 1e9)
