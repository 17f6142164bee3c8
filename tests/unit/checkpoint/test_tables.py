"""Dynamic tables in checkpoints: bases and deltas, read together, compacted, cleaned up; damage is named."""
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mxhybrid.base.errors import CheckpointError, InputError
from mxhybrid.checkpoint import compaction, files, folder, layers, npy_files, philox, tensor_files
from mxhybrid.checkpoint.compaction import compact
from mxhybrid.checkpoint.read_only import open_checkpoint
from mxhybrid.checkpoint.reader import Damaged, Reader, newest
from mxhybrid.row_store.row_store import FirstValues

from ...helpers.checkpoints import rewrite_manifest
from ...helpers.programs import run_program
from ...helpers.row_stores import first_rows
from ...helpers.stored_tables import WIDTH, Table, chain, save


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(files, 'SHARD_BYTES', 16)
    monkeypatch.setattr(layers, 'MERGED_ROWS', 4)
    monkeypatch.setattr(compaction, 'PART_BYTES', 200)


@pytest.mark.both_pythons
def test_bases_and_deltas_are_read_together(tmp_path):
    table = chain(tmp_path)
    with open_checkpoint(tmp_path, verify=True) as tables:
        assert (tables.step, tables.extra) == (3, {'at': 3})
        assert list(tables) == ['dense', 'users.weight']
        table.assert_is(tables['users'])
        assert tables['users'].rows([[2, 3], [5, 2]]).shape == (2, 2, WIDTH)
        assert tables['users'].rows([]).shape == (0, WIDTH)
        np.testing.assert_array_equal(tables['dense'].numpy(), np.arange(8, dtype='f4').reshape(4, 2) + 3)
        np.testing.assert_array_equal(tables['dense'].rows([[3], [1]]), [[[9, 10]], [[5, 6]]])
        with pytest.raises(KeyError, match='no .items., but dense, users.weight'):
            tables['items']
        for wrong, message in [([1.0], 'float64'), (['1'], 'integers'), (np.uint64([2 ** 63]), '9223372036854775808')]:
            with pytest.raises(InputError, match=message):
                tables['users'].rows(wrong)
        with pytest.raises(InputError, match='dense: 4 is not a row: give row ids from 0 to 3'):
            tables['dense'].rows([1, 4])
    with open_checkpoint(tmp_path / '00000001-step-1') as tables:
        assert len(tables['users']) == 7


def test_compaction(tmp_path):
    table = chain(tmp_path)
    seen = []
    path = compact(tmp_path, lambda name, rows: seen.append((name, rows)))
    assert os.path.basename(path) == '00000003-step-3-compacted'
    assert os.listdir(str(tmp_path)) == [os.path.basename(path)]
    assert sum(rows for _, rows in seen) == len(table.rows)
    with open_checkpoint(tmp_path, verify=True) as tables:
        table.assert_is(tables['users'])
        assert (tables.step, tables.extra) == (3, {'at': 3})
        np.testing.assert_array_equal(tables['dense'].numpy(), np.arange(8, dtype='f4').reshape(4, 2) + 3)
    reader = Reader(path)
    parts = [part for layer in reader.layers('users.weight', []) for part in layer]
    assert len(parts) > 1
    for part in parts:
        expected = table.columns(part.keys)
        assert set(part.columns) == set(expected)
        for name, column in expected.items():
            np.testing.assert_array_equal(part.columns[name], column)
    waiting = [np.load(os.path.join(parts[0].path, name + '.npy')).tolist() for name in ('waiting', 'sightings')]
    assert waiting == [[table.version] * 3] * 2  # of both partitions of the newest checkpoint
    assert compact(tmp_path) is None


def test_a_delta_that_was_written_during_a_compaction(tmp_path):
    table = chain(tmp_path)

    def save_once(name, rows):
        if len(folder.names(str(tmp_path))) == 3:
            table.touch(77)
            table.expire(5)
            save(tmp_path, table, 4, delta=True)

    compact(tmp_path, save_once)
    assert sorted(os.listdir(str(tmp_path))) == ['00000003-step-3-compacted', '00000004-step-4']
    with open_checkpoint(tmp_path, verify=True) as tables:
        assert tables.step == 4
        table.assert_is(tables['users'])
    compact(tmp_path)
    assert os.listdir(str(tmp_path)) == ['00000004-step-4-compacted']
    with open_checkpoint(tmp_path, verify=True) as tables:
        table.assert_is(tables['users'])


def test_a_compaction_that_fails_changes_nothing(tmp_path):
    table = chain(tmp_path)

    def full(name, rows):
        raise OSError(28, 'No space left on device')

    with pytest.raises(CheckpointError, match='No space left'):
        compact(tmp_path, full)
    assert len(folder.names(str(tmp_path))) == len(os.listdir(str(tmp_path))) == 3
    with open_checkpoint(tmp_path) as tables:
        table.assert_is(tables['users'])


@pytest.mark.both_pythons
def test_the_command(tmp_path):
    def run(directory):
        return subprocess.run([sys.executable, '-m', 'mxhybrid', 'checkpoint', 'compact', str(directory)], timeout=50,
                              capture_output=True, text=True)

    chain(tmp_path)
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (0, '%s/00000003-step-3-compacted\n' % tmp_path), done.stderr
    assert 'nothing to do' in run(tmp_path).stdout
    done = run(tmp_path / 'none')
    assert done.returncode == 1 and 'none has no checkpoint' in done.stderr


def test_checkpoints_that_others_build_on_stay(tmp_path):
    table = Table()
    for step in range(1, 6):
        table.touch(step)
        path = save(tmp_path, table, step, delta=step not in (1, 4), keep=1)
        expected = {1: [1], 2: [2, 1], 3: [3, 2, 1], 4: [4], 5: [5, 4]}[step]
        assert [folder.number_of(name) for name in folder.names(str(tmp_path))] == expected
        assert folder.number_of(Reader(path).oldest_base()) == expected[-1]
    with open_checkpoint(tmp_path) as tables:
        table.assert_is(tables['users'])


@pytest.mark.both_pythons
def test_a_reader_keeps_what_it_reads(tmp_path):
    table = chain(tmp_path)
    with open_checkpoint(tmp_path) as tables:
        later = Table()
        later.touch(1)
        save(tmp_path, later, 9, keep=1)
        assert len(folder.names(str(tmp_path))) == 4
        table.assert_is(tables['users'])
    save(tmp_path, later, 10, keep=1)
    assert [folder.number_of(name) for name in folder.names(str(tmp_path))] == [5]


@pytest.mark.parametrize('file', ['table-00000/0/keys.npy', 'table-00000/1/rows.npy',
                                  'table-00000/0/state1.npy', 'manifest.json'])
@pytest.mark.parametrize('kind', ['changed', 'cut', 'missing'])
@pytest.mark.parametrize('number', [1, 2])
def test_damage_anywhere_in_a_chain(tmp_path, file, kind, number):
    chain(tmp_path)
    victim = tmp_path / ('%08d-step-%d' % (number, number)) / file
    if kind == 'missing':
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[:-1] + (b'\xee' if kind == 'changed' else b''))
    if number == 1:
        with pytest.raises(CheckpointError, match='no checkpoint .* is whole: .*%s' % file):
            newest(str(tmp_path))
    else:  # the base is whole
        assert newest(str(tmp_path)).content['step'] == 1
    if kind == 'changed' and file != 'manifest.json':
        return  # found by digests alone
    if number == 1:
        with pytest.raises(CheckpointError, match='no checkpoint .* is whole'):
            open_checkpoint(tmp_path)
    else:
        with open_checkpoint(tmp_path) as tables:
            assert tables.step == 1


def test_a_changed_byte_of_any_file_is_found(tmp_path):
    chain(tmp_path)
    path = tmp_path / '00000002-step-2'
    paths = [file for file in path.rglob('*') if file.is_file()]
    assert {'manifest.json', 'keys.npy', 'rows.npy', 'state1.npy', 'removed.npy', 'used.npy', '00000.safetensors'} <= {
        file.name for file in paths}
    random = np.random.RandomState(0)
    for file in paths:
        data = file.read_bytes()
        for place in random.permutation(len(data))[:9].tolist() + [0, len(data) - 1]:
            changed = bytearray(data)
            changed[place] ^= 1 << random.randint(8)
            file.write_bytes(changed)
            with pytest.raises(Damaged, match=str(file)):
                Reader(str(path)).verify()
        file.write_bytes(data)
    Reader(str(path)).verify()


def test_another_base_of_the_same_name_is_noticed(tmp_path):
    chain(tmp_path)
    other = Table()
    other.touch(4)
    save(tmp_path / 'other', other, 2)
    for name in ('00000001-step-1', '00000002-step-2'):
        (tmp_path / name).rename(tmp_path / ('aside-' + name))
    (tmp_path / 'other' / '00000001-step-2').rename(tmp_path / '00000002-step-2')
    with pytest.raises(CheckpointError, match='00000003-step-3.*another checkpoint of the same name'):
        Reader(str(tmp_path / '00000003-step-3')).bases()
    assert newest(str(tmp_path)).content['step'] == 2


@pytest.mark.parametrize('change, message', [
    (lambda entry: entry.update(width=0), 'wrong entry'), (lambda entry: entry.update(directory='..'), "in '..'"),
    (lambda entry: entry['first_values'].update(kind='xavier'), 'wrong entry'),
    (lambda entry: entry['options'].update(row_dtype='int4'), 'wrong entry'),
    (lambda entry: entry['parts'][0]['files'].update({'../keys': {'bytes': 1, 'xxh3_128': ''}}), 'wrong entry'),
    (lambda entry: entry['parts'][0]['files']['keys'].pop('xxh3_128'), 'wrong entry'),
    (lambda entry: entry['parts'][0]['files']['keys'].update(xxh3_128=0), 'wrong entry'),
    (lambda entry: entry['parts'][0]['files']['rows'].update(blake2b=''), 'wrong entry'),
    (lambda entry: entry['parts'].append([]), 'wrong entry'), (lambda entry: entry.update(delta=1), 'wrong entry')])
def test_a_manifest_made_to_hurt(tmp_path, change, message):
    table = Table()
    table.touch(1)
    path = save(tmp_path, table, 1)
    rewrite_manifest(path, lambda content: change(content['dynamic_tables']['users.weight']))
    with pytest.raises(Damaged, match=message):
        Reader(path)


@pytest.mark.parametrize('words_at_once', [50, 1 << 20])
@pytest.mark.parametrize('kind', ['uniform', 'normal', 'constant', 'zero'])
@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_first_values_are_those_of_training(monkeypatch, kind, dtype, words_at_once):
    monkeypatch.setattr(philox, '_WORDS', words_at_once)
    keys = np.random.RandomState(0).randint(-2 ** 63, 2 ** 63 - 1, 1000)
    first = FirstValues(kind, 0.3, 2 ** 63 + 12345)
    expected = first_rows(first, keys, 17, dtype)
    rows = np.empty_like(expected)
    philox.fill_first_values(first._asdict(), keys, rows)
    np.testing.assert_array_equal(rows, expected)


@pytest.mark.both_pythons
def test_arrays_in_npy_files(tmp_path):
    path = str(tmp_path / 'a.npy')
    with npy_files.ArrayWriter(path, 'f4', 3) as writer:
        writer.append(np.arange(6).reshape(2, 3))
        writer.append(np.zeros((0, 3)))
        writer.append(np.ones((1, 3)))
        with pytest.raises(ValueError, match='do not continue'):
            writer.append(np.ones((1, 2)))
    np.testing.assert_array_equal(np.load(path), [[0, 1, 2], [3, 4, 5], [1, 1, 1]])
    np.testing.assert_array_equal(npy_files.mapped(path), np.load(path))
    np.save(path, np.asfortranarray(np.arange(6).reshape(2, 3)))
    np.testing.assert_array_equal(npy_files.mapped(path), np.load(path))
    np.save(path, np.array([None]))
    for content, message in [(None, 'numbers'), (b'no array', 'not a .npy file'), (b'\x93NUMPY\x02\x00', 'header'),
                             (npy_files.header(np.dtype('f4'), (5,)), 'too few')]:
        if content is not None:
            Path(path).write_bytes(content)
        with pytest.raises(npy_files.FormatError, match=message):
            npy_files.mapped(path)


@pytest.mark.both_pythons
def test_arrays_in_safetensors_files(tmp_path):
    from safetensors.numpy import save_file

    arrays = {'a': np.arange(6, dtype='f4').reshape(2, 3), 'b': np.zeros((0, 3)), 'c': np.array([True, False])}
    path = str(tmp_path / 'file.safetensors')
    save_file(arrays, path)
    read = tensor_files.tensors_of(path)
    assert set(read) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)
        assert read[name].dtype == array.dtype
    for content in (b'', b'short', b'\xff' * 20, b'\x02' + b'\0' * 7 + b'[]', b'\x02' + b'\0' * 7 + b'{'):
        Path(path).write_bytes(content)
        with pytest.raises(npy_files.FormatError):
            tensor_files.tensors_of(path)


@pytest.mark.both_pythons
def test_no_mxnet_is_needed(tmp_path):
    table = chain(tmp_path)
    program = ('import importlib.util, sys\n'
               'sys.modules.update(dict.fromkeys(["horovod", "safetensors"]))  # cannot be imported\n'
               'spec = importlib.util.find_spec\n'
               'importlib.util.find_spec = lambda name: None if name == "mxnet" else spec(name)\n'
               'import mxhybrid\n'
               'tables = mxhybrid.checkpoint.open(sys.argv[1])\n'
               'print(len(tables["users"]), tables["dense"].numpy().sum())\n'
               'assert "mxnet" not in sys.modules\n'
               'try:\n'
               '    mxhybrid.create\n'
               'except AttributeError as error:\n'
               '    print(error)\n')
    output = run_program(program, tmp_path).stdout.splitlines()
    assert output == ['%d 52.0' % len(table.rows),
                      'mxhybrid.create needs MXNet, which is not installed here: without it there is '
                      'mxhybrid.checkpoint with open, open_tables, changes and export']
