"""The compiled planner under the compiler's sanitizers, without a warning, and beside that in Python."""
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from lab.planner.steps import MadeUpStep
from mxhybrid.planner.simulator.backend import PYTHON

import mxhybrid
from mxhybrid.planner.simulator.native_library import planner_library
from mxhybrid.planner.simulator.simulation import Simulation

SOURCES = sorted((pathlib.Path(mxhybrid.__file__).parent / 'planner' / 'simulator' / 'src').glob('*.cc'))
CHANGES = """
import sys
import numpy as np
from lab.planner.steps import MadeUpStep
from mxhybrid.parallel.sharding.box import split_shape
from mxhybrid.planner.simulator.backend import compiled_engine
from mxhybrid.planner.task_graph.native_transfer_tasks import CompiledTransfers, load_transfers
from mxhybrid.planner.task_graph.redistribution import Placed, Unit
from mxhybrid.planner.task_graph.task_builder import Machine
from mxhybrid.planner.simulator.simulation import Simulation
from tests.helpers.planned_networks import cluster

for hosts, ranks in ((2, 2), (8, 4)):
    made = CompiledTransfers(Machine(cluster(hosts, ranks)), load_transfers(sys.argv[1]))
    count = hosts * ranks
    rows, columns = (Placed.of(dict(enumerate(split_shape((64, 64), degrees)))) for degrees in ((count, 1), (1, count)))
    halves = Placed.of({rank: box for rank, box in enumerate(2 * split_shape((64, 64), (count // 2, 1)))})
    for have in (rows, halves):
        made.has(have, columns), made.group_sums(have, 4)
        for partial in (False, True):
            moved = made.moved(have, partial, columns)
            unit = Unit(have, columns, moved, columns.ranks[::2].copy())
            for back in (False, True):
                made.exchanges([(0, unit), (2, unit)], 4, back)
            made.composed('forward', have.ranks, np.ones(count), np.ones(count), moved, 4)
    made.group_sums(Placed.of(dict.fromkeys(range(count), ((0, 64), (0, 64)))), 4)

step = MadeUpStep(24, 4, halos=6, all_to_alls=6)
simulation = Simulation(step.resources, 16, compiled_engine(sys.argv[1]))
simulation.run(step.blocks())
for number in np.random.RandomState(0).randint(0, step.operators, 60):
    limit = simulation.seconds * (0.9 + 0.1 * (number % 3))
    if simulation.change(step.proposal(int(number)), limit) > limit or number % 2:
        simulation.undo()
print('all is well')
"""


@pytest.mark.timeout(240)
def test_changes_are_clean(tmp_path):
    library = str(tmp_path / 'simulate.so')
    subprocess.run(['g++', '-std=c++17', '-O1', '-g', '-fno-omit-frame-pointer', '-ffp-contract=off', '-Wall',
                    '-Wextra', '-Werror', '-fsanitize=address,undefined', '-fno-sanitize-recover=all', '-fPIC',
                    '-shared', *map(str, SOURCES), '-o', library], check=True, timeout=120)
    # The interpreter is not compiled with it.
    runtime = subprocess.run(['g++', '-print-file-name=libasan.so'], stdout=subprocess.PIPE, text=True, check=True,
                             timeout=60).stdout.strip()
    ended = subprocess.run([sys.executable, '-c', CHANGES, library], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           env={**os.environ, 'LD_PRELOAD': runtime, 'ASAN_OPTIONS': 'detect_leaks=0',
                                'PYTHONPATH': os.pathsep.join(sys.path)}, text=True,
                           timeout=180)
    assert ended.returncode == 0 and ended.stdout.endswith('all is well\n'), ended.stdout


def test_it_calls_its_own_of_what_mxnet_exports():
    """As in a process with Horovod, where all of MXNet's symbols come first."""
    code = 'import ctypes, mxnet.base; ctypes.CDLL(mxnet.base._LIB._name, ctypes.RTLD_GLOBAL)\n' + CHANGES
    ended = subprocess.run([sys.executable, '-c', code, planner_library()._name], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
                           text=True, timeout=120)
    assert ended.returncode == 0 and ended.stdout.endswith('all is well\n'), ended.stdout


@pytest.fixture
def step():
    """Of the size of Inception-v3 at 16 ranks."""
    return MadeUpStep(320, 16, all_to_alls=80)


def test_large_steps_are_the_same_bits_in_both_languages(step):
    compiled, plain = Simulation(step.resources), Simulation(step.resources, engine=PYTHON)
    blocks = step.blocks()
    assert compiled.run(blocks) == plain.run(blocks)
    for number in (3, 160, 310):
        proposed = step.proposal(number)
        assert compiled.change(proposed) == plain.change(proposed)
        times = plain.timeline()
        assert all(np.array_equal(one.ends, times[key].ends) for key, one in compiled.timeline().items())
