"""Tables are repartitioned while training goes on, by hand and by ``partitions='auto'``; the results do not change."""
import json

import numpy as np
import pytest
from lab.jobs import run_job
from lab.launchers import MEASURED_MEMORY

from ...helpers import comparing
from . import BODIES

BODY, MEMORY, AUTO = (BODIES / name for name in ('moves.py', 'moves_memory.py', 'auto.py'))
TABLES = {'net_words_weight', 'net_bins_weight', 'net_days_weight'}


def test_moves_equal_one_process_and_change_no_bit(expected, tmp_path):
    still = ['weight-sgd-momentum', 'weight-adam', 'weight-adagrad', 'gradient-adam', 'ahead']
    result = run_job(BODY, 'horovodrun', workers=2, servers=2, args=['--directory', tmp_path, '--still'] + still,
                     timeout=200).ok()
    comparing.assert_cases(expected, result, 2)
    for case in still:
        comparing.assert_same_bits(result.results[0]['still ' + case], result.results[0][case], case)


def test_moves_with_three_clients_and_servers(expected, tmp_path):
    cases = ['weight-sgd-momentum', 'weight-rmsprop-centered', 'weight-groupadagrad', 'gradient-adam', 'saved',
             'frozen', 'plain', 'plain-float64']
    moved = run_job(BODY, 'launch.py', workers=3, servers=3, timeout=150, env={'MXHYBRID_ROW_TRANSPORT': 'ps-lite'},
                    args=['--directory', tmp_path, '--cases', ','.join(cases)]).ok()
    comparing.assert_cases({case: expected[case] for case in cases}, moved, 3)


def test_memory_does_not_grow_with_the_number_of_moves():
    results = run_job(MEMORY, 'horovodrun', workers=2, servers=2, timeout=150, env=MEASURED_MEMORY).ok().results
    assert results[0]['servers'] == 2
    table = results[0]['table']
    for series in (results[0]['server_memory'], results[0]['worker_memory'],
                   results[1]['worker_memory']):
        # Four partitionings have their turn, five times each. Heaps take three turns to find their size.
        assert max(series) < series[0] + 2.5 * table
        assert max(series[-8:]) < max(series[:-8]) + 0.5 * table
    # 22 pushes of one by both workers, where they push the same row: momentum 0.9, learning rate 1.
    velocity = weight = np.float32(0)
    for _ in range(22):
        velocity = np.float32(0.9) * velocity - np.float32(1)
        weight += velocity
    assert [results[rank]['row'] for rank in (0, 1)] == pytest.approx([weight, weight], rel=1e-5)


def test_auto_finds_counts_that_the_next_run_uses(tmp_path):
    path = tmp_path / 'partitions.json'
    job = run_job(AUTO, 'horovodrun', workers=2, servers=2, args=[path], timeout=200).ok()
    assert sorted(job.results) == [0, 1]
    for rank, results in job.results.items():
        searched, content = results['outcomes'], results['content']
        assert (content['workers'], content['servers'], set(content['tables'])) == (2, 2, TABLES)
        assert content['tables']['net_days_weight']['samples'] == []  # moves too little
        for name, entry in content['tables'].items():
            assert (searched['first'][name], searched['last'][name]) == (entry['start'], entry['partitions'])
            assert entry['start'] == 2
            assert entry['finished'] or 'could cost' in entry['reason']
            # The unit tests of the tuner check the conclusions from the samples.
            assert entry['partitions'] in {2, *dict(entry['samples'])}
            assert not entry['samples'] or 2 in dict(entry['samples'])
        comparing.assert_same_bits(results['fixed']['weights'], searched['weights'], 'rank %d' % rank)
        assert set(results['fixed']['last'].values()) == {2}
        assert results['again']['first'] == results['again']['last'] == {
            'net_words_weight': 6, 'net_bins_weight': 5, 'net_days_weight': 3}
        assert set(results['other']['first'].values()) == {2}
    for words in ('searching net_words_weight (2 partitions), net_bins_weight (2 partitions) within', 'auto: done; ',
                  'net_words_weight starts with 6 partitions, from %s' % path,
                  'partition_file=%r is ignored: it is for 3 workers, this job has 2' % str(path)):
        assert job.output.count(words) == 1, words
    assert json.loads(path.read_text())['workers'] == 3


def test_a_table_without_pushes_does_not_delay_the_search(tmp_path):
    body = tmp_path / 'body.py'
    body.write_text(
        'import mxnet as mx, numpy as np, mxhybrid\n'
        'kv = mxhybrid.create(partitions="auto")\n'
        'tables = {"large": (40000, 16), "small": (2000, 8)}\n'  # the large one is measured, if it is pushed
        'for name, shape in tables.items():\n'
        '    kv.init(name, mx.nd.sparse.zeros("row_sparse", shape))\n'
        'for step in range(60):\n'
        '    for name, shape in tables.items():\n'
        '        if name == "small" or step < 4:\n'
        '            rows = np.ones((50, shape[1]), "f4"), np.arange(50)\n'
        '            kv.push(name, mx.nd.sparse.row_sparse_array(rows, shape=shape))\n')
    result = run_job(body, 'horovodrun', workers=2, timeout=90).ok()
    assert 'partitions=auto: searching small' in result.output
    assert 'large travels by' not in result.output
