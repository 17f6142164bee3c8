"""CPU seconds of other processes."""
import os
import subprocess
import sys
import time

import pytest

from mxhybrid.planner.calibration.cpu_meter import process_seconds

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
