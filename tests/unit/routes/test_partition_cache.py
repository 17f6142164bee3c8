"""The partition file: its content, its use, refused files, and its table."""
import json
import os

import pytest

from mxhybrid.base.errors import InputError
from mxhybrid.commands.main import run_alone
from mxhybrid.routes import partition_cache
from mxhybrid.routes.partition_search import MEASURED_STEPS, WARM_STEPS, Candidate, Tuning


def content_of_a_search():
    """Return the result of a search of one table, with a second table that was not searched."""
    table = Candidate('words', 1, 1, 64, lambda old, new, known: 0.0)
    tuning = Tuning([table], 18.0, 10)
    while tuning.next() is not None:
        seconds = 1 + 16 / table.count + table.count
        tuning.observe(0.25, WARM_STEPS * seconds, seconds)
    assert tuning.steps == 10 + 4 * (WARM_STEPS + MEASURED_STEPS) and table.count == 4
    kept = {'bins': {'shape': [7, 2], 'dtype': 'float32', 'partitions': 1, 'start': 1, 'finished': True,
                     'reason': 'small', 'samples': [], 'theta': None}}
    return partition_cache.record(tuning, [table], {'words': ([100, 8], 'float16')}, kept, 4, 2)


@pytest.fixture
def path(tmp_path):
    """Return the path of a partition file."""
    partition_cache.write(str(tmp_path / 'partitions.json'), content_of_a_search())
    return tmp_path / 'partitions.json'


def test_written_files_are_read(path):
    content = partition_cache.read(str(path))
    assert content == content_of_a_search()
    words = content['tables']['words']
    assert (words['partitions'], words['start'], words['finished']) == (4, 1, True)
    assert words['samples'] == [[1, 18.0], [2, 11.0], [4, 9.0], [8, 11.0]]
    assert words['theta'] == pytest.approx([1, 16, 1])
    assert content['lost'] == pytest.approx(0.25 * 4)
    assert os.listdir(str(path.parent)) == ['partitions.json']


def test_no_file_is_no_error_but_a_directory_is(tmp_path):
    assert partition_cache.read(str(tmp_path / 'none.json')) is None
    with pytest.raises(InputError, match='cannot be read'):
        partition_cache.read(str(tmp_path))


@pytest.mark.parametrize('text, words', [
    ('', 'cannot be read'), ('{', 'cannot be read'), ('\xff', 'cannot be read'), ('[]', 'not a partition file'),
    ('{"format": 2}', 'not a partition file'), ('{"format": 1}', 'invalid'), ('{"format": 1, "tables": []}', 'invalid'),
    ('{"format": 1, "tables": {"a": {}}}', 'invalid')])
def test_other_files_are_refused(tmp_path, text, words):
    (tmp_path / 'partitions.json').write_bytes(text.encode('latin1'))
    with pytest.raises(InputError, match=words) as caught:
        partition_cache.read(str(tmp_path / 'partitions.json'))
    assert 'partitions.json' in str(caught.value)


@pytest.mark.parametrize('name, value', [
    ('partitions', 0), ('partitions', True), ('partitions', '4'), ('shape', 3), ('dtype', None), ('finished', 1),
    ('samples', [1]), ('samples', None), ('samples', [[1, '2 ms']]), ('samples', [[0, 1.0]]), ('start', None),
    ('theta', [1, 2]), ('theta', 3), ('theta', [1, 2, None]), ('reason', None), ('workers', None), ('servers', 2.5),
    ('seconds_before', '1'), ('lost', None), ('seconds_after', float('inf')), ('budget', [])])
def test_damaged_and_missing_values_are_refused(path, name, value):
    content = content_of_a_search()
    values = content['tables']['words'] if name in content['tables']['words'] else content
    values[name] = value
    texts = [json.dumps(content)]
    del values[name]
    if name != 'theta':  # few samples have no fit
        texts.append(json.dumps(content))
    for text in texts:
        path.write_text(text)
        with pytest.raises(InputError, match='invalid'):
            partition_cache.read(str(path))


def test_misfits_are_named():
    content = content_of_a_search()
    assert partition_cache.misfit(content, 4, 2) == ''
    assert partition_cache.misfit(content, 3, 2) == 'it is for 4 workers, this job has 3'
    assert partition_cache.misfit(content, 4, 1) == 'it is for 2 servers, this job has 1'
    assert partition_cache.table_misfit(content, 'words', [100, 8], 'float16') == ''
    assert partition_cache.table_misfit(content, 'words', [101, 8], 'float16') == (
        'its table words is [100, 8] float16, not [101, 8] float16')
    assert 'not [100, 8] float32' in partition_cache.table_misfit(content, 'words', [100, 8], 'float32')
    assert partition_cache.table_misfit(content, 'other', [1, 1], 'float32') == (
        'it has no table other, only bins, words')


def test_shown_in_words(path, capsys):
    run_alone('partitions', [str(path)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith('4 workers, 2 servers; a step took 1.8e+04 ms before')
    assert lines[1] == 'bins: 1 partitions (small)'
    assert lines[2].startswith('words: 4 partitions (all counts of interest were sampled); 1: 1.8e+04 ms, 2: ')


def test_drawn(path):
    picture = path.parent / 'partitions.png'
    run_alone('partitions', [str(path), str(picture)])
    assert picture.read_bytes().startswith(b'\x89PNG')


def test_a_file_without_samples_is_not_drawn(path, capsys):
    content = json.loads(path.read_text())
    del content['tables']['words']
    path.write_text(json.dumps(content))
    assert run_alone('partitions', [str(path), str(path.parent / 'partitions.png')]) == 1
    assert capsys.readouterr().err == (
        'mxhybrid partitions: no table was searched: there is nothing to draw: leave PICTURE out\n')


def test_a_missing_file_is_named(tmp_path, capsys):
    assert run_alone('partitions', [str(tmp_path / 'none.json')]) == 1
    assert 'none.json does not exist' in capsys.readouterr().err
