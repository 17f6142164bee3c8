"""Tables of checkpoints as files for other programs: every format and type, bounded memory, and errors that leave
nothing behind.
"""
import json
import os
import resource
import sys
from pathlib import Path

import numpy as np
import pytest
import xxhash

from mxhybrid.base.errors import CheckpointError, InputError, SettingError
from mxhybrid.checkpoint import exporting, folder, layers, table_files
from mxhybrid.checkpoint.exporting import export
from mxhybrid.checkpoint.files import Writer
from mxhybrid.checkpoint.table_files import PartWriter

from ...helpers.programs import run_program
from ...helpers.stored_tables import DESCRIPTION, Table, chain, row, save
from ...oracles import int8


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(layers, 'MERGED_ROWS', 4)


def arrays_of(path, to):
    """Read a table by the packages of other programs; returns its columns."""
    if to == 'npy':
        return {name[:-4]: np.load(os.path.join(path, name)) for name in os.listdir(path)}
    if to == 'parquet':
        import pyarrow.parquet
        table = pyarrow.parquet.read_table(os.path.join(path, 'table.parquet'))
        columns = {name: table[name].combine_chunks() for name in table.column_names}
        return {name: column.flatten().to_numpy().reshape(len(column), -1) if hasattr(column.type, 'list_size')
                else column.to_numpy() for name, column in columns.items()}
    from safetensors.numpy import load_file
    files = [load_file(os.path.join(path, name)) for name in sorted(os.listdir(path))]
    assert len(files) > 1
    return {name: np.concatenate([file[name] for file in files]) for name in files[0]}


def manifest_of(output):
    return json.loads(Path(output, 'manifest.json').read_text())


def write_checkpoint(directory, description, parts):
    """Write a checkpoint of a table, of which each part is a sequence of pieces: keys, and columns by name."""
    os.makedirs(directory)
    with folder.locked(directory), Writer(directory) as writer:
        path, entries = writer.make_directory('table-00000'), []
        for number, pieces in enumerate(parts):
            with PartWriter(os.path.join(path, str(number)), table_files.columns_of(description)) as part:
                for keys, columns in pieces:
                    part.append(keys, columns)
            entries.append(table_files.seal(os.path.join(path, str(number))))
        writer.add_table('users.weight', description, False, entries)
        writer.commit(1, {}, 3)


@pytest.mark.both_pythons
@pytest.mark.parametrize('to', exporting.FORMATS)
@pytest.mark.parametrize('dtype', [None, *exporting.DTYPES])
def test_every_format_and_type(tmp_path, small, to, dtype):
    stored = chain(tmp_path / 'checkpoints')
    output = str(tmp_path / 'exported')
    assert export(tmp_path / 'checkpoints', output, 'users', to=to, dtype=dtype, state=dtype != 'float16') == output
    manifest = manifest_of(output)
    assert (manifest['step'], manifest['checkpoint'], manifest['to']) == (3, '00000003-step-3', to)
    assert list(manifest['tables']) == ['users.weight']
    table = manifest['tables']['users.weight']
    path = os.path.join(output, table['directory'])
    contents = {file.name: file.read_bytes() for file in Path(path).iterdir()}
    assert table['files'] == {name: {'bytes': len(data), 'xxh3_128': xxhash.xxh3_128_hexdigest(data)}
                              for name, data in contents.items()}
    arrays = arrays_of(path, to)
    keys = sorted(stored.rows)
    rows = np.array([row(key, stored.rows[key]) for key in keys])
    assert arrays['keys'].tolist() == keys and table['rows'] == len(keys)
    assert {name: (array.dtype.name, array.shape[1] if array.ndim > 1 else None) for name, array in arrays.items()
            if name != 'keys'} == {name: (column['dtype'], column['width'])
                                   for name, column in table['columns'].items()}
    assert set(arrays) == {'keys', 'rows'} | ({'scales'} if dtype == 'int8' else set()) | (
        {'state0', 'state1'} if dtype != 'float16' else set())
    if dtype == 'int8':
        np.testing.assert_array_equal(arrays['rows'] * arrays['scales'][:, None], [int8.rounded(one) for one in rows])
    else:
        np.testing.assert_array_equal(arrays['rows'], rows.astype(dtype or 'float32'))
    if dtype != 'float16':
        np.testing.assert_array_equal(arrays['state0'], rows * 2)
    assert table['first_values'] == DESCRIPTION.first_values and table['default_key'] is None


def test_several_tables_and_dense_weights(tmp_path, small):
    chain(tmp_path / 'checkpoints')
    seen = []
    export(tmp_path / 'checkpoints' / '00000002-step-2', tmp_path / 'exported',
           progress=lambda *rows: seen.append(rows))
    tables = manifest_of(tmp_path / 'exported')['tables']
    assert (list(tables), tables['dense']['shape']) == (['dense', 'users.weight'], [4, 2])
    assert sum(rows for name, rows in seen if name == 'users.weight') == tables['users.weight']['rows'] == 5
    dense = arrays_of(str(tmp_path / 'exported' / tables['dense']['directory']), 'npy')
    np.testing.assert_array_equal(dense['rows'], np.arange(8).reshape(4, 2) + 2)
    assert dense['keys'].tolist() == [0, 1, 2, 3]


def full(monkeypatch, path):
    """Let no file of this process be larger than 600 bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def no_pyarrow(monkeypatch, path):
    monkeypatch.setitem(sys.modules, 'pyarrow.parquet', None)


def wrong_keys(monkeypatch, path):
    keys = os.path.join(path, 'table-00000', '0', 'keys.npy')
    np.save(keys, np.load(keys).view(np.uint64))


@pytest.mark.both_pythons
@pytest.mark.parametrize('change, keywords, kind, message', [
    (None, {'tables': 'items'}, InputError, "has the name 'items', but there are dense, users.weight: give"),
    (None, {'to': 'csv'}, InputError, "to='csv' is no format: give one of npy, parquet, safetensors"),
    (None, {'dtype': 'int4'}, InputError, "dtype='int4': give one of float32, float16, int8"),
    (None, {'dtype': 'float16'}, InputError, 'the row of key 0 of users.weight has values that float16 cannot hold'),
    (None, {'directory': 'none'}, CheckpointError, 'none has no checkpoint'),
    (None, {'directory': 'checkpoints/.writing'}, CheckpointError, '.writing has no checkpoint'),
    (None, {'directory': 'checkpoints/00000009-step-9'}, CheckpointError, 'has no checkpoint 00000009-step-9'),
    *((full, {'to': to}, CheckpointError, 'cannot export to .*exported: .*File too large') for to in exporting.FORMATS),
    (no_pyarrow, {'to': 'parquet'}, SettingError, 'needs the package pyarrow .*: pip install pyarrow'),
    (wrong_keys, {}, CheckpointError, r'keys.npy has an array of uint64 of shape \(\d+,\), not of int64')],
    ids=lambda value: getattr(value, '__name__', str(value)))
def test_errors_leave_nothing(tmp_path, monkeypatch, change, keywords, kind, message):
    table = Table()
    table.version = 70000  # in each row
    table.touch(*range(40))
    path = save(tmp_path / 'checkpoints', table, 1)
    (tmp_path / 'checkpoints' / '.writing').mkdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        if change is not None:
            change(monkeypatch, path)
        with pytest.raises(kind, match=message):
            export(tmp_path / keywords.pop('directory', 'checkpoints'), tmp_path / 'exported', **keywords)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(str(tmp_path)) == ['checkpoints']


def test_an_error_names_the_type_of_the_table(tmp_path):
    directory, description = str(tmp_path / 'checkpoints'), DESCRIPTION._replace(dtype='float64', state_widths=[])
    write_checkpoint(directory, description, [[(np.array([7]), {'rows': np.full((1, description.width), np.inf)})]])
    with pytest.raises(InputError, match='key 7 .* int8 cannot hold: export it as its own type, float64'):
        export(directory, tmp_path / 'exported', dtype='int8')


def test_a_killed_export_is_cleaned_up(tmp_path):
    chain(tmp_path / 'checkpoints')
    left = tmp_path / 'exported.writing'
    (left / 'table-00000').mkdir(parents=True)
    with folder.shared(str(left)):
        with pytest.raises(InputError, match='another process writes .*exported.writing'):
            export(tmp_path / 'checkpoints', tmp_path / 'exported')
    export(tmp_path / 'checkpoints', tmp_path / 'exported')
    assert sorted(os.listdir(str(tmp_path))) == ['checkpoints', 'exported']
    with pytest.raises(InputError, match='exported exists: give a directory that does not exist'):
        export(tmp_path / 'checkpoints', tmp_path / 'exported')


def test_memory_of_the_command_is_bounded(tmp_path):
    """A table of 270 MB in four parts is exported with far less memory, of which most is Python's."""
    directory, width, partitions = str(tmp_path / 'checkpoints'), 16, 4
    description = DESCRIPTION._replace(width=width, state_widths=[width])
    def pieces(part):
        for start in range(0, 500_000, 50_000):
            rows = np.full((50_000, width), start + part, np.float32)
            yield np.arange(start, start + 50_000) * partitions + part, {'rows': rows, 'state0': rows}
    write_checkpoint(directory, description, map(pieces, range(partitions)))
    program = ('import resource, subprocess, sys\n'
               'subprocess.run([sys.executable, "-m", "mxhybrid", *sys.argv[1:]], check=True)\n'
               'print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n')
    output = str(tmp_path / 'exported')
    printed = run_program(program, 'checkpoint', 'export', directory, 'users*', '--output', output, '--to',
                          'npy').stdout.split()
    assert printed[0] == output
    assert int(printed[1]) < 200_000  # KiB
    keys = np.load(os.path.join(output, 'table-00000', 'keys.npy'))
    rows = np.load(os.path.join(output, 'table-00000', 'rows.npy'), mmap_mode='r')
    assert len(keys) == 2_000_000 and (np.diff(keys) == 1).all()
    np.testing.assert_array_equal(rows[:, 3], keys // partitions // 50_000 * 50_000 + keys % partitions)
