"""Checkpoints as files: written arrays are read back, and a full disk leaves the checkpoints before."""
import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from mxhybrid.base.errors import CheckpointError, InputError
from mxhybrid.checkpoint import files as checkpoint_files, folder
from mxhybrid.checkpoint.files import Writer
from mxhybrid.checkpoint.folder import kept, locked, names
from mxhybrid.checkpoint.manifest import plain
from mxhybrid.checkpoint.reader import newest

from ...helpers.checkpoints import arrays, assert_whole, write
from ...helpers.programs import run_program

pytestmark = [pytest.mark.both_pythons, pytest.mark.usefixtures('small_shards')]


def test_written_values_are_read_back(tmp_path):
    directory = tmp_path / 'new' / 'deep'
    path = write(directory, 4, extra={'a': [1, 2.5, None, 'ü', {'b': True}], 'nan': float('inf')})
    assert path == str(directory / '00000001-step-4')
    reader = newest(str(directory))
    assert reader.path == path
    assert_whole(reader, 4)
    assert reader.content['extra'] == {'a': [1, 2.5, None, 'ü', {'b': True}], 'nan': float('inf')}
    shards = [name for name in os.listdir(path) if name.endswith('.safetensors')]
    assert len(shards) == len(reader.content['shards']) > 5
    for number in range(len(shards)):
        assert sum(tensor.nbytes for tensor in reader._shard(number).values()) <= 64
    assert os.listdir(str(directory)) == ['00000001-step-4']


def test_the_format_is_ordinary_safetensors(tmp_path):
    from safetensors.numpy import load_file
    path = write(tmp_path, 3)
    manifest = json.loads(Path(path, 'manifest.json').read_text())['content']
    assert manifest['format'] == 3
    flat = []
    for shard, start, stop in manifest['arrays']['table']['pieces']:
        piece = load_file(os.path.join(path, '%05d.safetensors' % shard))['table@%d' % start]
        assert len(piece) == stop - start
        flat.append(piece)
    np.testing.assert_array_equal(np.concatenate(flat), arrays(3)['table'].reshape(-1))


def test_the_last_ones_are_kept_whatever_their_step(tmp_path):
    for step in (10, 20, 15, 15, 30):
        write(tmp_path, step, keep=3)
    assert names(str(tmp_path)) == ['00000005-step-30', '00000004-step-15', '00000003-step-15']
    write(tmp_path, 1, keep=1)
    assert sorted(os.listdir(str(tmp_path))) == ['00000006-step-1']
    assert_whole(newest(str(tmp_path)), 1)


def test_other_files_are_left_alone(tmp_path):
    (tmp_path / 'notes.txt').write_text('mine')
    (tmp_path / '1-step-2').mkdir()
    (tmp_path / '00000001-step-x').mkdir()
    write(tmp_path, 1, keep=1)
    write(tmp_path, 2, keep=1)
    assert sorted(os.listdir(str(tmp_path))) == ['00000001-step-x', '00000002-step-2', '1-step-2', 'notes.txt']


def test_a_writer_that_does_not_commit_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError), Writer(str(tmp_path)) as writer:
        writer.add('a', (100,), 'float32', [np.ones(100)])
        assert os.listdir(str(tmp_path / '.writing'))
        raise ZeroDivisionError
    assert os.listdir(str(tmp_path)) == []


@pytest.mark.parametrize('count', [9, 11])
def test_pieces_have_to_make_the_shape(tmp_path, count):
    with pytest.raises(CheckpointError, match='a has %d elements, not the 10' % count), Writer(str(tmp_path)) as writer:
        writer.add('a', (2, 5), 'float32', [np.ones(count)])


def test_a_dtype_unknown_to_the_format_is_refused(tmp_path):
    with pytest.raises(InputError, match='a is complex128'), Writer(str(tmp_path)) as writer:
        writer.add('a', (2,), 'complex128', [np.ones(2)])


CYCLIC = []
CYCLIC.append(CYCLIC)


@pytest.mark.parametrize('value', [object(), {1, 2}, np.zeros(2), b'bytes', {'a': [np.float32(1)]}, 10 ** 5000, CYCLIC],
                         ids=['object', 'set', 'array', 'bytes', 'deep', 'huge', 'cyclic'])
def test_values_that_json_cannot_hold_are_refused(value):
    with pytest.raises(InputError, match='extra is not a JSON value'):
        plain(value, 'extra')


#: Writes a checkpoint beside another one, with files that are limited as on a full disk; prints the error.
FULL = """
import resource, sys
import numpy as np
from mxhybrid.checkpoint import files, folder
from tests.helpers import checkpoints
directory, limit, elements = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
files.SHARD_BYTES = 1 << 20
checkpoints.write(directory, 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
try:
    with folder.locked(directory), files.Writer(directory) as writer:
        writer.add('a', (elements,), 'float32', [np.ones(elements)])
        writer.commit(2, {'extra': 'x' * 100000}, 3)
except OSError as error:
    print(error.errno)
"""


@pytest.mark.parametrize('limit, elements', [(5000, 10 ** 5), (10 ** 5, 10)],
                         ids=['half a shard', 'half a manifest'])
def test_files_that_cannot_grow_leave_what_was(tmp_path, limit, elements):
    assert int(run_program(FULL, tmp_path, limit, elements).stdout) == errno.EFBIG
    assert os.listdir(str(tmp_path)) == ['00000001-step-1']
    assert_whole(newest(str(tmp_path)), 1)


def test_files_are_flushed_before_they_are_named(tmp_path, monkeypatch):
    """Every file is flushed once written, then its directory, all before the rename; the parent directory after it."""
    calls, fsync, rename = [], os.fsync, os.rename

    def recorded_fsync(handle):
        calls.append(os.readlink('/proc/self/fd/%d' % handle))
        fsync(handle)

    def recorded_rename(source, target):
        calls.append('rename')
        rename(source, target)

    monkeypatch.setattr(os, 'fsync', recorded_fsync)
    monkeypatch.setattr(os, 'rename', recorded_rename)
    path = write(tmp_path, 1)
    aside = str(tmp_path / '.writing')
    assert sorted(calls[:-4]) == sorted(os.path.join(aside, name) for name in os.listdir(path)
                                        if name != 'manifest.json')
    assert calls[-4:] == [os.path.join(aside, 'manifest.json'), aside, 'rename', str(tmp_path)]


def test_checkpoints_stay_while_they_are_read_and_go_later(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, 'LOCK_TIMEOUT_S', 0.2)
    write(tmp_path, 1)
    with kept(str(tmp_path)) as kept_names, kept(str(tmp_path)):  # of which there may be several
        for step in (2, 3):
            write(tmp_path, step, keep=1)
        assert names(str(tmp_path)) == ['00000003-step-3', '00000001-step-1']
        assert kept_names == ['00000001-step-1']
        assert_whole(newest(str(tmp_path), kept_names), 1)
    write(tmp_path, 4, keep=1)
    assert names(str(tmp_path)) == ['00000004-step-4']


def test_a_name_that_cannot_be_flushed_leaves_what_was(tmp_path, monkeypatch):
    write(tmp_path, 1)
    sync = checkpoint_files.sync_directory

    def failing(path):
        if path == str(tmp_path):
            raise OSError(errno.EIO, 'no disk')
        sync(path)

    monkeypatch.setattr(checkpoint_files, 'sync_directory', failing)
    with pytest.raises(OSError, match='no disk'):
        write(tmp_path, 2)
    assert os.listdir(str(tmp_path)) == ['00000001-step-1']


def test_one_process_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, 'LOCK_TIMEOUT_S', 0.2)
    with locked(str(tmp_path)):
        with pytest.raises(CheckpointError, match='another process has used .* for 0.2 s'), locked(str(tmp_path)):
            pass
    with locked(str(tmp_path)):
        pass


def test_other_folders_keep_nobody_from_reading_checkpoints(tmp_path):
    write(tmp_path, 1)
    os.mkfifo(str(tmp_path / '00000002-step-2'))
    (tmp_path / '00000003-step-3').symlink_to(tmp_path / 'nowhere')
    with kept(str(tmp_path)) as found:
        assert found == ['00000003-step-3', '00000002-step-2', '00000001-step-1']
        assert_whole(newest(str(tmp_path), found), 1)
    write(tmp_path, 4, keep=1)
    assert names(str(tmp_path))[0] == '00000004-step-4' and '00000001-step-1' not in names(str(tmp_path))
