"""CPU seconds of other processes, and the typical one of several rounds."""
import os
import subprocess
import sys
import time

import pytest

from mxhybrid.planner.calibration.cpu_meter import process_seconds, typical_round

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


def test_latency_is_a_difference_of_like_rounds():
    # CPU seconds, seconds on the clock, CPU seconds of the script: in two rounds the worker came last and did not wait.
    rounds = [[1.0, 1.0, 0.5], [1.2, 1.5, 0.6], [1.1, 1.4, 0.5], [1.2, 1.6, 0.7], [1.3, 1.1, 0.6]]
    core, elapsed, script = typical_round(rounds)
    assert (core, elapsed, script) == (1.2, 1.4, 0.6)
    assert elapsed - core > 0
