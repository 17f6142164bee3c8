"""Training workloads of the benchmark without jobs: their batches, the comparison of losses, and their figures."""
import json
import math

import numpy as np
import pytest
from lab.benchmark import cli, models
from lab.benchmark.model_steps import TASKS, batches, initial
from lab.processes import JobFailed


def test_other_losses_are_an_error():
    models.compare('dist_sync', [9.0, 5.0, 4.01], [9.0, 5.0, 4.0])
    for last in (4.5, 3.5, math.nan):
        with pytest.raises(JobFailed, match='dist_sync ends with loss'):
            models.compare('dist_sync', [last] * 5, [4.0] * 5)


@pytest.mark.parametrize('name', TASKS)
def test_workers_share_the_joint_batch(name):
    task = TASKS[name].shrunk(4)
    data = None
    if task.kind in ('lm', 'gpt'):
        data = np.random.RandomState(1).randint(0, task.words, 4000).astype(np.int32)
    parts = [batches(task, data, rank, 2, 2) for rank in range(2)]
    assert [array.shape for array in parts[0][0]] == [array.shape for array in parts[1][1]]
    assert not np.array_equal(parts[0][0][0], parts[1][0][0]) or name == 'train_movielens'
    for step in range(2):
        again = batches(task, data, 0, 2, 2)[step]
        for array, other in zip(parts[0][step], again):
            np.testing.assert_array_equal(array, other)
    if task.kind == 'lm':
        words, labels, candidates, *counts = parts[0][0]
        np.testing.assert_array_equal(words[1:], labels.reshape(words.shape)[:-1])
        np.testing.assert_array_equal(candidates, parts[1][0][2])
        assert len(np.unique(candidates)) == len(candidates) <= task.candidates
        assert all((count <= 0).all() for count in counts)
    if task.kind == 'dlrm':
        assert (parts[0][0][1] < np.array(task.rows)).all() and (parts[0][0][1] >= 0).all()


def test_first_values_fit_to_the_width():
    values = initial(3, (50, 10000))
    assert values.dtype == np.float32 and abs(values).max() <= 0.01 and values.std() > 0.005
    assert not np.array_equal(values, initial(4, (50, 10000)))


def _run(hosts, steps_s):
    contenders = {name: {'per_s': 64 * hosts / seconds, 'rounds': [
        {'step_s': seconds * factor, 'steps_s': [seconds] * 12, 'sent': 3e6 * hosts,
         'losses': [9.0] * 2 + list(np.linspace(8, 5, 12))} for factor in (1, 1.5, 0.8)]}
        for name, seconds in steps_s.items()}
    return {'hosts': hosts, 'workers': 1, 'mbit': 1000.0, 'unit': 'words', 'units': 64 * hosts, 'model': 'lm, 512 wide',
            'contenders': contenders}


@pytest.mark.parametrize('hosts, names', [((1, 2, 8), ('hosts', 'bytes')), ((4,), ('loss',))])
def test_figures_are_drawn_from_a_file(tmp_path, hosts, names):
    settings = {'workload': 'train_lm', 'warmup': 2, 'rounds': 3, 'cores': 2, 'processor': 'Some Processor',
                'load_before': 0.5, 'share': 0.2, 'no_network': False, 'command': 'scripts/bench --some options'}
    saved = tmp_path / 'saved.json'
    saved.write_text(json.dumps({'settings': settings, 'runs': [
        _run(count, {'hybrid': 1.0, 'dist_sync': 1.5}) for count in hosts]}))
    assert cli.main(['--from', str(saved), '--plot', str(tmp_path / 'training.svg')]) == 0
    assert sorted(path.name for path in tmp_path.glob('*.svg')) == sorted('training-%s.svg' % name for name in names)
    for name in names:
        drawn = (tmp_path / ('training-%s.svg' % name)).read_text()
        for text in ('hybrid', 'dist_sync', 'Some Processor', 'scripts/bench --some', 'of 3 rounds', '1000 Mbit/s'):
            assert text in drawn, (name, text)
        assert ('ideal' in drawn) is (name == 'hosts')
