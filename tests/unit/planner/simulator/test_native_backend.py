"""The compiled library of the planner: under sanitizers, without a warning, and compared with Python."""
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from lab.planner.steps import MadeUpStep

import mxhybrid
from mxhybrid.base.errors import SettingError
from mxhybrid.planner.planner import Planner
from mxhybrid.planner.simulator import native_backend as backend_module, task_table
from mxhybrid.planner.simulator.native_backend import native_backend, planner_library
from mxhybrid.planner.simulator.resource_groups import TokenBucket
from mxhybrid.planner.simulator.simulation import Simulation
from tests.helpers.object_files import compiled
from tests.helpers.planned_networks import cluster, network
from tests.oracles.event_loop import PYTHON_BACKEND

from .test_simulation import changes, whole_steps

SOURCES = sorted((pathlib.Path(mxhybrid.__file__).parent / 'planner' / 'simulator' / 'src').glob('*.cc'))
CHANGES = """
import sys
import numpy as np
from lab.planner.steps import MadeUpStep
from mxhybrid.parallel.sharding.box import split_shape
from mxhybrid.planner.simulator.native_backend import native_backend, planner_library
from mxhybrid.planner.task_graph.transfer_tasks import TransferTasks
from mxhybrid.planner.task_graph.redistribution import RankBoxes, Redistribution
from mxhybrid.planner.cluster.machine_model import Machine
from mxhybrid.planner.simulator.simulation import Simulation
from tests.helpers.planned_networks import cluster

for hosts, ranks in ((2, 2), (8, 4)):
    builder = TransferTasks(Machine(cluster(hosts, ranks)), planner_library(sys.argv[1]))
    count = hosts * ranks
    rows, columns = (RankBoxes.from_boxes(dict(enumerate(split_shape((64, 64), degrees))))
                     for degrees in ((count, 1), (1, count)))
    halves = RankBoxes.from_boxes({rank: box for rank, box in enumerate(2 * split_shape((64, 64), (count // 2, 1)))})
    for held in (rows, halves):
        builder.coverage(held, columns), builder.group_sums(held, 4)
        for partial in (False, True):
            transfers = builder.transfers(held, partial, columns)
            unit = Redistribution(held, columns, transfers, columns.ranks[::2].copy())
            for back in (False, True):
                builder.redistributions([(0, unit), (2, unit)], 4, back)
            builder.collective_operator('forward', held.ranks, np.ones(count), np.ones(count), transfers, 4)
    builder.group_sums(RankBoxes.from_boxes(dict.fromkeys(range(count), ((0, 64), (0, 64)))), 4)

step = MadeUpStep(24, 4, halos=6, all_to_alls=6)
simulation = Simulation(step.resources, 16, native_backend(sys.argv[1]))
simulation.run(step.blocks())
for number in np.random.RandomState(0).randint(0, step.operators, 60):
    limit = simulation.seconds * (0.9 + 0.1 * (number % 3))
    if simulation.propose(step.proposal(int(number)), limit) > limit or number % 2:
        simulation.rollback()
print('all is well')
"""


@pytest.mark.timeout(240)
def test_changes_are_clean(tmp_path):
    library, flags = str(tmp_path / 'simulate.so'), ['-fsanitize=address,undefined', '-fno-sanitize-recover=all']
    objects = [compiled(source, ['-O1', '-g', '-fPIC', *flags], [SOURCES[0].parent], tmp_path) for source in SOURCES]
    subprocess.run(['g++', *flags, '-shared', *objects, '-o', library], check=True, timeout=120)
    # The interpreter is not compiled with the sanitizers.
    runtime = subprocess.run(['g++', '-print-file-name=libasan.so'], stdout=subprocess.PIPE, text=True, check=True,
                             timeout=60).stdout.strip()
    ended = subprocess.run([sys.executable, '-c', CHANGES, library], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           env={**os.environ, 'LD_PRELOAD': runtime, 'ASAN_OPTIONS': 'detect_leaks=0',
                                'PYTHONPATH': os.pathsep.join(sys.path)}, text=True,
                           timeout=180)
    assert ended.returncode == 0 and ended.stdout.endswith('all is well\n'), ended.stdout


def test_the_library_calls_its_own_functions():
    """The library finds its own symbols in a process with Horovod, where those of MXNet come first."""
    code = 'import ctypes, mxnet.base; ctypes.CDLL(mxnet.base._LIB._name, ctypes.RTLD_GLOBAL)\n' + CHANGES
    ended = subprocess.run([sys.executable, '-c', code, planner_library()._name], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
                           text=True, timeout=120)
    assert ended.returncode == 0 and ended.stdout.endswith('all is well\n'), ended.stdout


@pytest.fixture
def step():
    """A step of the size of Inception-v3 on 16 ranks."""
    return MadeUpStep(320, 16, all_to_alls=80)


def test_large_steps_are_the_same_bits_in_both_languages(step):
    compiled, python = Simulation(step.resources), Simulation(step.resources, backend=PYTHON_BACKEND)
    blocks = step.blocks()
    assert compiled.run(blocks) == python.run(blocks)
    for number in (3, 160, 310):
        proposal = step.proposal(number)
        assert compiled.propose(proposal) == python.propose(proposal)
        expected = python.timeline()
        assert all(np.array_equal(times.ends, expected[key].ends) for key, times in compiled.timeline().items())


@pytest.fixture
def fresh_libraries():
    """Forget the libraries that were loaded, before and after a test."""
    cached = planner_library, native_backend
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


class UntimedOperators:
    """Operator times that nobody may ask for."""


@pytest.mark.parametrize('files, words', [
    ([], 'is missing from .*, because there was no g.. when mxhybrid was installed: install g.., then reinstall'),
    ([os.devnull], '/dev/null cannot be loaded: .*: install g.., then reinstall mxhybrid with pip install --force-re')])
def test_a_missing_library_is_reported_before_any_timing(fresh_libraries, monkeypatch, files,
                                                                                  words):
    monkeypatch.setattr(backend_module, 'compiled_files', lambda folder, name: files)
    with pytest.raises(SettingError, match='planner: its compiled library .*' + words):
        Simulation([TokenBucket(1.0)])
    with pytest.raises(SettingError, match=words):
        Planner(network(), (8, 3, 8, 8), cluster(), UntimedOperators())


def test_a_library_of_another_version_is_refused(fresh_libraries, monkeypatch):
    monkeypatch.setattr(backend_module, '_VERSION', 1)
    with pytest.raises(SettingError, match='planner: its compiled library .*_simulate.*.so is stale: it has '
                       'version [0-9]+, but version 1 is needed: compile it again: in a checkout by scripts/install'):
        planner_library()


def arrays_of(table):
    """Return the used parts of all arrays."""
    tasks, inner, outer, slots, live_tasks = table.counts.tolist()
    return [table.tasks[:tasks].tolist(), table.successors[:inner].tolist(), table.outer_successors[:outer].tolist(),
            live_tasks, *(values[:slots].tolist() for values in (table.bases, table.sizes, table.keys, table.alive))]


@settings(max_examples=200, deadline=None)
@given(whole_steps(), st.lists(st.tuples(changes(), st.booleans()), min_size=1, max_size=6), st.integers(0, 30))
def test_both_languages_write_the_same_arrays(step_blocks, proposals, capacity):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_table, '_MIN_CAPACITY', capacity)
        patch.setattr(task_table, '_SPARE_FACTOR', 1)
        python, compiled = (backend.table(step_blocks) for backend in (PYTHON_BACKEND, native_backend()))
    assert arrays_of(python) == arrays_of(compiled)
    for change, is_kept in proposals:
        before = arrays_of(python)
        expected, replacement = (table.replace(change) for table in (python, compiled))
        if expected is None:
            assert replacement is None
        else:
            for expected_values, values in zip(expected, replacement):
                np.testing.assert_array_equal(expected_values, values)
            live = python.live().tolist()
            assert set(expected.changed.tolist()) <= set(live) and not set(expected.removed.tolist()) & set(live)
        assert arrays_of(python) == arrays_of(compiled) and set(python.blocks) == set(compiled.blocks)
        if expected is None:
            assert arrays_of(python) == before
        elif not is_kept:
            python.rollback()
            compiled.rollback()
            assert arrays_of(python) == arrays_of(compiled) == before
        assert set(python.spans()) == set(compiled.spans()) == set(python.blocks)
