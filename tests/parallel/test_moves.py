"""Tables are cut anew while training goes on, by hand and by ``partitions='auto'``; the results do not change."""
import json

import comparing
import numpy as np
import pytest
from jobs import BODIES, run_job

from mxhybrid.tuning import Search, choose

MOVES, MEMORY, AUTO = (BODIES / name for name in ('moves.py', 'moves_memory.py', 'auto.py'))
TABLES = {'net_words_weight', 'net_bins_weight', 'net_days_weight'}


@pytest.fixture(scope='module')
def expected(tmp_path_factory):
    """MXNet alone."""
    return comparing.reference(MOVES, '--directory', str(tmp_path_factory.mktemp('alone')))


def test_moves_equal_one_process_and_change_no_bit(expected, tmp_path):
    args = ['--directory', str(tmp_path)]
    moved = run_job(MOVES, 'horovodrun', workers=2, servers=2, args=args, timeout=150).ok()
    comparing.assert_cases(expected, moved, 2)
    cases = ['weight-sgd-momentum', 'weight-adam', 'weight-adagrad', 'gradient-adam', 'ahead']
    still = run_job(MOVES, 'horovodrun', workers=2, servers=2, args=args + ['--still', '--cases', ','.join(cases)],
                    timeout=150).ok()
    for case in cases:
        comparing.assert_same_bits(still.results[0][case], moved.results[0][case], case)


def test_moves_with_three_clients_and_servers(expected, tmp_path):
    moved = run_job(MOVES, 'launch.py', workers=3, servers=3, args=['--directory', str(tmp_path)], timeout=150,
                    env={'MXHYBRID_LOCAL_AGGREGATION': '0'}).ok()
    comparing.assert_cases(expected, moved, 3)


def test_memory_does_not_grow_with_the_number_of_moves():
    results = run_job(MEMORY, 'horovodrun', workers=2, servers=2, timeout=150).ok().results
    assert results[0]['servers'] == 2
    table = results[0]['table']
    for series in (results[0]['seen'], results[0]['own'], results[1]['own']):
        # Four partitionings had their turn, twelve times in all.
        assert max(series) < series[0] + 2.5 * table
        assert max(series[-4:]) < max(series[:-4]) + 0.5 * table
    # 14 pushes of one by both workers, where they push the same row: momentum 0.9, learning rate 1.
    velocity = weight = np.float32(0)
    for _ in range(14):
        velocity = np.float32(0.9) * velocity - np.float32(1)
        weight += velocity
    assert [results[rank]['row'] for rank in (0, 1)] == pytest.approx([weight, weight], rel=1e-5)


def test_auto_finds_counts_and_the_next_run_starts_from_them(tmp_path):
    path = tmp_path / 'plan.json'

    def train(steps, partitions, workers=2):
        return run_job(AUTO, 'horovodrun', workers=workers, servers=2, timeout=150, args=[
            '--steps', str(steps), '--partitions', partitions, '--plan', str(path)]).ok()

    found = train(70, 'auto')
    plan = json.loads(path.read_text())
    assert (plan['workers'], plan['servers'], set(plan['tables'])) == (2, 2, TABLES)
    assert plan['tables']['net_days_weight']['samples'] == []  # moves too little
    for name in sorted(TABLES):
        entry = plan['tables'][name]
        assert [found.results[rank]['counts'][name] for rank in (0, 1)] == [entry['partitions']] * 2
        assert found.results[0]['first'][name] == entry['start'] == 2
        assert entry['finished'] or 'could cost' in entry['reason']
        if entry['samples']:
            samples = dict(entry['samples'])
            search = Search(2, 1, 128)
            search.samples = samples
            assert 2 in samples and (not entry['finished'] or search.wants() is None)
            assert entry['partitions'] == choose(samples, 2) or not entry['finished']
    assert 'partitions=auto: done' in found.output and 'net_words_weight (2 partitions)' in found.output
    assert set(found.results) == {0, 1}
    fixed = train(70, '2')
    comparing.assert_same_bits(fixed.results[0]['weights'], found.results[0]['weights'], 'auto')
    assert json.loads(path.read_text()) == plan

    # The next run starts from what this one found, here put beyond doubt.
    for name, count in (('net_words_weight', 6), ('net_bins_weight', 5)):
        plan['tables'][name].update(partitions=count, finished=True)
    path.write_text(json.dumps(plan))
    again = train(12, '*days*=3,*=auto')
    assert again.results[0]['first'] == again.results[1]['first'] == again.results[1]['counts'] == {
        'net_words_weight': 6, 'net_bins_weight': 5, 'net_days_weight': 3}
    assert 'net_words_weight starts with 6 partitions' in again.output and 'searching' not in again.output

    # A job that it does not fit starts from the default and says why.
    other = train(2, 'auto', 3)
    assert other.results[0]['first']['net_words_weight'] == 2
    assert 'is ignored: it is for 2 workers, this job has 3' in other.output
    assert json.loads(path.read_text()) == plan
