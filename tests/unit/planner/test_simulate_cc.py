"""The compiled loop under the compiler's sanitizers, without a warning, and beside the one in Python."""
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from lab.planner.steps import MadeUpStep

import mxhybrid
from mxhybrid.planner import event_loop
from mxhybrid.planner.simulator import Simulation

SOURCE = pathlib.Path(mxhybrid.__file__).parent / 'planner' / 'src' / 'simulate.cc'
CHANGES = """
import sys
import numpy as np
from lab.planner.steps import MadeUpStep
from mxhybrid.planner import compiled_loop
from mxhybrid.planner.simulator import Simulation

step = MadeUpStep(24, 4, halos=6, all_to_alls=6)
simulation = Simulation(step.resources, 16, compiled_loop.load(sys.argv[1]))
simulation.run(step.blocks())
for number in np.random.RandomState(0).randint(0, step.operators, 60):
    simulation.change(step.proposal(int(number)))
    if number % 2:
        simulation.undo()
print('all is well')
"""


@pytest.mark.timeout(240)
def test_changes_are_clean(tmp_path):
    library = str(tmp_path / 'simulate.so')
    subprocess.run(['g++', '-std=c++17', '-O1', '-g', '-fno-omit-frame-pointer', '-ffp-contract=off', '-Wall',
                    '-Wextra', '-Werror', '-fsanitize=address,undefined', '-fno-sanitize-recover=all', '-fPIC',
                    '-shared', str(SOURCE), '-o', library], check=True, timeout=120)
    # The interpreter is not compiled with it.
    runtime = subprocess.run(['g++', '-print-file-name=libasan.so'], stdout=subprocess.PIPE, text=True, check=True,
                             timeout=60).stdout.strip()
    ended = subprocess.run([sys.executable, '-c', CHANGES, library], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           env={**os.environ, 'LD_PRELOAD': runtime, 'ASAN_OPTIONS': 'detect_leaks=0',
                                'PYTHONPATH': os.pathsep.join(sys.path)}, text=True,
                           timeout=180)
    assert ended.returncode == 0 and ended.stdout.endswith('all is well\n'), ended.stdout


@pytest.fixture
def step():
    """Of the size of Inception-v3 at 16 ranks."""
    return MadeUpStep(320, 16, all_to_alls=80)


def test_large_steps_are_the_same_bits_in_both_languages(step):
    compiled, plain = Simulation(step.resources), Simulation(step.resources, loop=event_loop.simulate)
    blocks = step.blocks()
    assert compiled.run(blocks) == plain.run(blocks)
    for number in (3, 160, 310):
        proposed = step.proposal(number)
        assert compiled.change(proposed) == plain.change(proposed)
        times = plain.timeline()
        assert all(np.array_equal(one.ends, times[key].ends) for key, one in compiled.timeline().items())
