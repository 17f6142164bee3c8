"""The compiled library of the planner: under sanitizers, for large steps, missing, stale, and its task table."""
import collections
import os
import pathlib
import subprocess
import sys

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
from mxhybrid.planner.simulator.task_block import TASK, key_and_index
from tests.helpers.object_files import compiled
from tests.helpers.planned_networks import cluster, network
from tests.oracles.event_loop import simulate, successors_of

from .test_simulation import changed, changes, times_of, whole_steps

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


def run_changes(library, preamble='', **environment):
    """Run `CHANGES` with a library in a process of its own."""
    ended = subprocess.run([sys.executable, '-c', preamble + CHANGES, library], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, timeout=180,
                           env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path), **environment})
    assert ended.returncode == 0 and ended.stdout.endswith('all is well\n'), ended.stdout


@pytest.mark.timeout(240)
def test_changes_are_clean(tmp_path):
    library, flags = str(tmp_path / 'simulate.so'), ['-fsanitize=address,undefined', '-fno-sanitize-recover=all']
    objects = [compiled(source, ['-O1', '-g', '-fPIC', *flags], [SOURCES[0].parent], tmp_path) for source in SOURCES]
    subprocess.run(['g++', *flags, '-shared', *objects, '-o', library], check=True, timeout=120)
    # The interpreter is not compiled with the sanitizers.
    runtime = subprocess.check_output(['g++', '-print-file-name=libasan.so'], text=True, timeout=60).strip()
    run_changes(library, LD_PRELOAD=runtime, ASAN_OPTIONS='detect_leaks=0')


def test_the_library_calls_its_own_functions():
    """The library finds its own symbols in a process with Horovod, where those of MXNet come first."""
    run_changes(planner_library()._name,
                'import ctypes, mxnet.base; ctypes.CDLL(mxnet.base._LIB._name, ctypes.RTLD_GLOBAL)\n')


@pytest.mark.parametrize('operators, ranks, all_to_alls', [(60, 4, 15), (320, 16, 80)],
                         ids=['small', 'of the size of Inception-v3 on 16 ranks'])
def test_proposals_of_large_steps_are_fresh_runs(operators, ranks, all_to_alls):
    """Steps of this size have snapshots in the default distance; the small one is compared with Python, too."""
    step = MadeUpStep(operators, ranks, all_to_alls=all_to_alls)
    simulation, blocks = Simulation(step.resources), {block.key: block for block in step.blocks()}
    simulation.run(blocks.values())
    for number in (3, operators // 2, operators - 10):
        proposal = step.proposal(number)
        blocks.update(proposal)
        found, fresh = simulation.propose(proposal), Simulation(step.resources)
        assert (fresh.run(blocks.values()), times_of(fresh)) == (found, times_of(simulation))
    if ranks == 4:
        assert simulate(blocks.values(), step.resources) == (found, times_of(simulation))


@pytest.fixture
def fresh_libraries():
    """Forget the libraries that were loaded, before and after a test."""
    planner_library.cache_clear(), native_backend.cache_clear()
    yield
    planner_library.cache_clear(), native_backend.cache_clear()


@pytest.mark.parametrize('files, words', [
    ([], 'is missing from .*, because there was no g.. when mxhybrid was installed: install g.., then reinstall'),
    ([os.devnull], '/dev/null cannot be loaded: .*: install g.., then reinstall mxhybrid with pip install --force-re')])
def test_a_missing_library_is_reported_before_any_timing(fresh_libraries, monkeypatch, files, words):
    monkeypatch.setattr(backend_module, 'compiled_files', lambda folder, name: files)
    with pytest.raises(SettingError, match='planner: its compiled library .*' + words):
        Simulation([TokenBucket(1.0)])
    with pytest.raises(SettingError, match=words):
        Planner(network(), (8, 3, 8, 8), cluster(), object())  # which cannot time an operator


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


def check_tasks_and_edges(table):
    """Check that the live tasks and the edges of a table are those of its blocks."""
    fields = [name for name in TASK.names if name not in ('order', 'inner', 'inner_end', 'outer', 'outer_end')]
    assert {key: table.tasks[fields][span].tolist() for key, span in table.spans().items()} == {
        key: block.content.tasks[fields].tolist() for key, block in table.blocks.items()}
    assert table.live_tasks == sum(block.size for block in table.blocks.values())
    names = names_of(table, table.live())
    edges = ((names[before], names[after]) for before, after in zip(*table.edges(table.live())))
    assert collections.Counter(edges) == collections.Counter(
        (before, after) for before, following in successors_of(table.blocks.values()).items() for after in following)


def names_of(table, numbers):
    """Return the key of the block of each task, and its index there, by the number of the task."""
    return {number: key_and_index(order) for number, order in zip(numbers, table.tasks['order'][numbers].tolist())}


@settings(max_examples=200, deadline=None)
@given(whole_steps(), st.lists(st.tuples(changes(), st.booleans()), min_size=1, max_size=6),
       st.integers(0, 30) | st.just(1000))
def test_a_table_has_its_blocks_tasks_and_edges(step_blocks, proposals, capacity):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_table, '_MIN_CAPACITY', capacity)
        patch.setattr(task_table, '_SPARE_FACTOR', 1)
        table = native_backend().table(step_blocks)
    check_tasks_and_edges(table)
    for change, is_kept in proposals:
        before, blocks, spans, used = arrays_of(table), dict(table.blocks), table.spans(), table.used
        replacement = table.replace(change)
        if replacement is None:
            assert arrays_of(table) == before and capacity < 1000
            continue
        assert table.blocks == changed(blocks, change)
        check_tasks_and_edges(table)
        assert replacement.first_new == used
        assert replacement.removed.tolist() == [
            number for key in change if key in spans for number in range(spans[key].start, spans[key].stop)]
        # New tasks, and tasks that wait for others than before.
        expected = {(key, index) for key, block in change.items() if block is not None for index in range(block.size)}
        for successors in (successors_of(blocks.values()), successors_of(table.blocks.values())):
            expected |= {after for (key, _), following in successors.items() if key in change
                         for after in following if after[0] not in change}
        numbers = names_of(table, replacement.changed)
        assert set(numbers.values()) == expected and set(numbers) <= set(table.live().tolist())
        if not is_kept:
            table.rollback()
            assert arrays_of(table) == before and table.blocks == blocks
