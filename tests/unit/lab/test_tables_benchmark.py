"""The benchmark of dynamic tables: its ids, its nets in one process, its figures and its arguments."""
import argparse
import json
import mmap

import numpy as np
import pytest
from lab import reports
from lab.benchmark import cli, table_steps, table_training, tables
from lab.processes import JobFailed


def test_draws_depend_on_batch_and_worker_alone():
    ids = table_steps.draw(1, 2, 5, 1000)
    assert ids.shape == (5, 26) and ids.dtype.kind == 'i' and 0 <= ids.min() and ids.max() < 1000
    assert np.array_equal(ids, table_steps.draw(1, 2, 5, 1000))
    assert not np.array_equal(ids, table_steps.draw(0, 2, 5, 1000))
    assert not np.array_equal(ids, table_steps.draw(1, 3, 5, 1000))


def test_frequent_ids_follow_zipfs_law():
    batches = table_steps.draw_frequent(1, 3, 2000, 100)
    assert [batch.shape for batch in batches] == [(2000, table_steps.FEATURES)] * 3
    assert not np.array_equal(batches[0], batches[1])
    counts = np.bincount(np.concatenate(batches).reshape(-1), minlength=100)
    np.testing.assert_allclose(counts / counts[0], np.arange(1, 101) ** -1.1, atol=0.02)


def test_distinct_ids_have_distinct_keys():
    keys = table_training.mixed(np.arange(100000))
    assert keys.dtype == np.int64 and len(np.unique(keys)) == 100000
    assert keys.min() < -2 ** 62 and keys.max() > 2 ** 62


def test_nets_of_a_pair_have_the_same_rows():
    for pair in ('rows', 'hash', 'collection', 'files'):
        nets = table_training._pair(pair, 3, 0, 1000)
        for net in nets:
            for _ in range(table_steps.BATCHES):
                net.step()
            net.flush()
        tables.check_rows(pair, [net.rows for net in nets])
    with pytest.raises(JobFailed, match='hash: the nets have 5 and 6 rows after the same batches'):
        tables.check_rows('hash', [5, 6])
    with pytest.raises(JobFailed):
        tables.check_rows('hash', [0, 0])


@pytest.mark.parametrize('rows', [1, 2, 5, 100000, 100001, 150001, 333333])
def test_workers_touch_each_row_once_in_equally_many_steps(rows):
    shares, steps = [], []
    for rank in (0, 1):
        touched, empty = [], []
        training = argparse.Namespace(train=touched.append, trainer=argparse.Namespace(step=empty.append))
        table_training._touch(training, argparse.Namespace(rank=rank, num_workers=2), rows)
        shares += touched
        steps.append(len(touched) + len(empty))
    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(rows))
    assert steps[0] == steps[1] and max(map(len, shares)) <= 50000


def test_one_process_trains_and_reports(tmp_path, monkeypatch):
    monkeypatch.setenv(reports.DIRECTORY, str(tmp_path))
    table_training.alone({'ids': 2, 'rows': 100, 'optimizer': 'adam', 'warmup': 1, 'steps': 2})
    reading = reports.read_reports(tmp_path)[0]
    assert reading['step_s'] > 0 and reading['cpu_s'] > 0 and reading['rows'] == 100


def test_memory_of_this_process_is_anonymous():
    before = table_training.memory_of('self')
    with mmap.mmap(-1, 1 << 26, flags=mmap.MAP_PRIVATE) as grown:  # an array may take memory of freed ones
        for _ in range(64):
            grown.write(b'1' * (1 << 20))
        after = table_training.memory_of('self')
    assert after['anonymous'] - before['anonymous'] > 1 << 25
    assert after['shared'] - before['shared'] < 1 << 20


def test_dd_writes_what_it_is_told(tmp_path):
    assert table_training.write_by_dd(str(tmp_path / 'zeros'), 3 << 20) > 0
    assert not list(tmp_path.iterdir())


def test_figures_are_ratios_of_blocks_beside_their_goals():
    blocks = [[[2.0, 0.2], [1.0, 0.4]], [[1.2, 0.2], [1.0, 0.4]], [[1.0, 0.3], [1.0, 0.4]]]
    step, cpu = tables.step_figures('a', blocks, 1.1, 0.6)
    assert step.value == pytest.approx(1.2) and not step.is_reached
    assert cpu.value == pytest.approx(0.5) and cpu.is_reached
    assert cpu.cells == ['CPU of a step: a', '200.00 ms, 400.00 ms', '0.5 x', '<= 0.6 x', 'yes']
    assert step.cells == ['step: a', '1200.00 ms, 1000.00 ms', '1.2 x', '<= 1.1 x', 'no']
    start = tables.start_figure('start_s', [[5.0, 7.0, 6.0], [4.0]])
    assert start.value == pytest.approx(2.0) and start.is_reached
    worker = tables.worker_figure('anonymous', [[90 << 20], [20 << 20]])
    assert worker.value == pytest.approx(70) and not worker.is_reached
    memory = tables.memory_figure({'anonymous': 17700, 'shared': 10 ** 9}, 100)
    assert (memory.value, memory.goal, memory.is_reached) == (177, 176, False)


def test_figures_of_checkpoints():
    whole = {'seconds': 2.0, 'cpu_s': 1.0, 'worker_bytes': 5 << 20, 'bytes': 100 << 20, 'dd_s': 1.0}
    delta = {'seconds': 0.1, 'cpu_s': 0.1, 'worker_bytes': 6 << 20, 'bytes': 1 << 20}
    speed, memory, deltas = tables.save_figures([{'whole': whole, 'delta': delta}])
    assert speed.value == pytest.approx(0.5) and not speed.is_reached
    assert speed._replace(value=0.6).is_reached
    assert memory.value == 6 and memory.is_reached
    assert deltas.value == pytest.approx(0.05) and not deltas.is_reached


def test_torch_is_left_out_where_it_is_missing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tables.importlib.util, 'find_spec', lambda name: None)
    assert 'by --torch-python' in tables.torch_missing(argparse.Namespace(torch_python=None))
    assert 'No such file' in tables.torch_missing(argparse.Namespace(torch_python=str(tmp_path / 'python')))
    assert 'cannot import torch' in tables.torch_missing(argparse.Namespace(torch_python='false'))
    file = tmp_path / 'figures.json'
    assert cli.main(['--workload', 'tables', '--parts', 'torch', '--json', str(file)]) == 0
    assert '* torch left out: PyTorch is not installed here' in capsys.readouterr().out
    assert json.loads(file.read_text())['runs'] == []


def test_parts_are_chosen_by_name(capsys, monkeypatch):
    assert cli.names_of(tables.PARTS)('hash, start') == ['hash', 'start']
    monkeypatch.setattr(tables, 'PARTS', {'hash': lambda args: iter([tables.Figure('a', 'b', 1.0, 2.0, 'x')])})
    args = cli.parse(['--workload', 'tables', '--parts', 'hash', '--touched', '5', '--ids', '7'])
    assert (args.parts, args.touched, args.ids) == (['hash'], 5, 7)
    figures = tables.run(args, lambda text: None)
    assert figures == [{'what': 'a', 'measured': 'b', 'value': 1.0, 'goal': 2.0, 'unit': 'x', 'at_least': False,
                        'reached': True}]
    assert '<= 2 x' in capsys.readouterr().out
