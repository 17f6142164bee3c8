"""Checkpoints as files: written arrays are read back; every damage is detected and named."""
import errno
import json
import logging
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from mxhybrid.base.errors import CheckpointError, InputError
from mxhybrid.checkpoint import files as checkpoint_files, folder, manifest as checkpoint_manifest
from mxhybrid.checkpoint.files import Writer
from mxhybrid.checkpoint.folder import kept, locked, names
from mxhybrid.checkpoint.manifest import plain
from mxhybrid.checkpoint.newest import NewestCheckpoint, newest
from mxhybrid.checkpoint.reader import Damaged, Reader

pytestmark = pytest.mark.both_pythons


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    """Shards of a few rows, so that small arrays have several."""
    monkeypatch.setattr(checkpoint_files, 'SHARD_BYTES', 64)


@pytest.fixture
def messages(caplog):
    """Return the messages that the library logs."""
    logger = logging.getLogger('mxhybrid')
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


def arrays(step=0):
    """Arrays of all kinds and sizes."""
    random = np.random.RandomState(step)
    return {'table': random.rand(11, 3).astype('f4'), 'scalar': np.float64(step).reshape(()), 'none': np.zeros((0, 5)),
            'halves': random.rand(7).astype('f2'), 'flags': np.array([True, False]), 'ids': np.arange(40) * step}


def write(directory, step, keep=3, extra=None):
    """A checkpoint of `arrays`."""
    os.makedirs(str(directory), exist_ok=True)
    with locked(str(directory)), Writer(str(directory)) as writer:
        for name, array in arrays(step).items():
            writer.add(name, array.shape, array.dtype, np.array_split(array.reshape(-1), 3))
        return writer.commit(step, {'extra': extra}, keep)


def assert_whole(reader, step):
    """A reader gives the arrays of a step, by any cut."""
    assert reader.content['step'] == step
    for name, array in arrays(step).items():
        entry = reader.content['arrays'][name]
        assert (entry['dtype'], tuple(entry['shape'])) == (array.dtype.name, array.shape)
        flat = array.reshape(-1)
        np.testing.assert_array_equal(reader.read(name, 0, flat.size), flat)
        for start, stop in ((0, 1), (3, flat.size - 1), (flat.size // 2, flat.size)):
            if 0 <= start <= stop <= flat.size:
                np.testing.assert_array_equal(reader.read(name, start, stop), flat[start:stop])


def test_written_values_are_read_back(tmp_path):
    directory = tmp_path / 'new' / 'deep'
    path = write(directory, 4, extra={'a': [1, 2.5, None, 'ü', {'b': True}], 'nan': float('inf')})
    assert path == str(directory / '00000001-step-4')
    reader = newest(str(directory))
    assert reader.path == path
    assert_whole(reader, 4)
    assert reader.content['extra'] == {'a': [1, 2.5, None, 'ü', {'b': True}], 'nan': float('inf')}
    shards = sorted(name for name in os.listdir(path) if name.endswith('.safetensors'))
    assert len(shards) == len(reader.content['shards']) > 5
    assert os.listdir(str(directory)) == ['00000001-step-4']


def test_shards_are_bounded(tmp_path):
    reader = Reader(write(tmp_path, 2))
    for number in range(len(reader.content['shards'])):
        assert sum(tensor.nbytes for tensor in reader._shard(number).values()) <= 64


def test_the_format_is_ordinary_safetensors(tmp_path):
    from safetensors.numpy import load_file
    path = write(tmp_path, 3)
    with open(os.path.join(path, 'manifest.json')) as handle:
        manifest = json.load(handle)['content']
    assert manifest['format'] == 1
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


def test_incomplete_files_are_removed(tmp_path):
    (tmp_path / '.writing').mkdir()
    (tmp_path / '.writing' / '00000.safetensors').write_bytes(b'half')
    (tmp_path / '.removing').mkdir()
    assert names(str(tmp_path)) == [] and newest(str(tmp_path)) is None
    write(tmp_path, 1)
    assert os.listdir(str(tmp_path)) == ['00000001-step-1']


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


def test_a_dtype_without_a_name_in_the_format_is_refused(tmp_path):
    with pytest.raises(InputError, match='a is complex128'), Writer(str(tmp_path)) as writer:
        writer.add('a', (2,), 'complex128', [np.ones(2)])


# ------------------------------------------------------------------------------------------------- damage

DAMAGES = {
    'gone': lambda path: os.remove(path),
    'empty': lambda path: open(path, 'wb').close(),
    'truncated': lambda path: os.truncate(path, os.path.getsize(path) - 1),
    'halved': lambda path: os.truncate(path, os.path.getsize(path) // 2),
    'longer': lambda path: open(path, 'ab').write(b'x'),
    'a directory': lambda path: (os.remove(path), os.mkdir(path)),
    'a pipe': lambda path: (os.remove(path), os.mkfifo(path)),
    'a loop': lambda path: (os.remove(path), os.symlink(path, path)),
    'one bit': lambda path: flip(path, os.path.getsize(path) * 4),
}


def flip(path, bit):
    """Turn one bit of a file around."""
    with open(path, 'r+b') as handle:
        handle.seek(bit // 8)
        byte = handle.read(1)[0]
        handle.seek(bit // 8)
        handle.write(bytes([byte ^ 1 << bit % 8]))


@pytest.mark.parametrize('damage', DAMAGES)
@pytest.mark.parametrize('file', ['manifest.json', '00000.safetensors', 'last'])
def test_a_damaged_newest_gives_way_to_the_one_before(tmp_path, messages, file, damage):
    write(tmp_path, 1)
    path = write(tmp_path, 2)
    if file == 'last':
        file = max(name for name in os.listdir(path) if name.endswith('.safetensors'))
    DAMAGES[damage](os.path.join(path, file))
    assert_whole(newest(str(tmp_path)), 1)
    warning, = {record.getMessage() for record in messages.records}
    assert os.path.join(path, file) in warning and 'damaged' in warning


def test_a_checkpoint_that_is_a_file_gives_way(tmp_path, messages):
    write(tmp_path, 1)
    (tmp_path / '00000002-step-2').write_bytes(b'')
    assert_whole(newest(str(tmp_path)), 1)
    assert '00000002-step-2/manifest.json cannot be read: Not a directory' in messages.text


def test_nothing_whole_is_an_error_not_a_new_beginning(tmp_path):
    first, second = write(tmp_path, 1), write(tmp_path, 2)
    flip(os.path.join(first, '00001.safetensors'), 800)
    os.remove(os.path.join(second, 'manifest.json'))
    with pytest.raises(CheckpointError, match='no checkpoint in .* is whole: .*manifest.json.*00001.safetensors') as e:
        newest(str(tmp_path))
    assert 'Remove the directory to start again' in str(e.value)


def test_shards_that_changed_places_are_noticed(tmp_path):
    path = write(tmp_path, 1)
    a, b = (os.path.join(path, '%05d.safetensors' % number) for number in (0, 1))
    os.rename(a, a + '.x')
    os.rename(b, a)
    os.rename(a + '.x', b)
    with pytest.raises(CheckpointError, match='00000.safetensors'):
        newest(str(tmp_path))


def test_damage_after_the_check_is_noticed(tmp_path):
    path = write(tmp_path, 1)
    reader = newest(str(tmp_path))
    reader.read('table', 0, 1)
    last = len(reader.content['shards']) - 1
    flip(os.path.join(path, '00001.safetensors'), 900)
    with pytest.raises(Damaged, match='00001.safetensors does not match its digest'):
        for name, array in arrays(1).items():
            reader.read(name, 0, array.size)
    assert last > 1


def test_a_later_format_is_not_damage(tmp_path):
    write(tmp_path, 1)
    path = write(tmp_path, 2)
    rewrite(path, lambda content: content.update(format=3, mxhybrid='9.0'))
    with pytest.raises(CheckpointError, match='format 3, written by mxhybrid 9.0; this version reads formats 1 and 2'):
        newest(str(tmp_path))


def test_a_lack_of_permission_is_not_damage(tmp_path, monkeypatch):
    write(tmp_path, 1)
    write(tmp_path, 2)
    opened = os.open

    def denied(path, *args):
        if str(path).endswith('manifest.json'):
            raise PermissionError(errno.EACCES, 'Permission denied', path)
        return opened(path, *args)

    monkeypatch.setattr(os, 'open', denied)
    with pytest.raises(CheckpointError, match='00000002-step-2/manifest.json.*Permission denied'):
        newest(str(tmp_path))


def rewrite(path, change):
    """Change the content of a manifest, and make its digest right again."""
    file = os.path.join(path, 'manifest.json')
    with open(file) as handle:
        content = json.load(handle)['content']
    change(content)
    with open(file, 'w') as handle:
        json.dump({'content': content, 'blake2b': checkpoint_manifest.digest(checkpoint_manifest.canonical(content))},
                  handle)


WRONG = {
    'a step of words': lambda c: c.update(step='two'),
    'a negative step': lambda c: c.update(step=-1),
    'no shards': lambda c: c.pop('shards'),
    'no arrays': lambda c: c.pop('arrays'),
    'arrays in a list': lambda c: c.update(arrays=[]),
    'a shard too few': lambda c: c['shards'].pop(),
    'a shard of a terabyte': lambda c: c['shards'][0].update(bytes=1 << 40),
    'a shard without digest': lambda c: c['shards'][0].pop('blake2b'),
    'another dtype': lambda c: c['arrays']['table'].update(dtype='int32'),
    'an object': lambda c: c['arrays']['table'].update(dtype='object'),
    'another shape': lambda c: c['arrays']['table'].update(shape=[11, 4]),
    'a negative shape': lambda c: c['arrays']['table'].update(shape=[-11, -3]),
    'a gap': lambda c: c['arrays']['table']['pieces'].pop(0),
    'an overlap': lambda c: c['arrays']['table']['pieces'].insert(0, c['arrays']['table']['pieces'][0]),
    'another shard': lambda c: c['arrays']['table']['pieces'][0].__setitem__(0, 1),
    'a shard beyond': lambda c: c['arrays']['table']['pieces'][0].__setitem__(0, 99),
    'a piece of words': lambda c: c['arrays']['table']['pieces'].__setitem__(0, 'abc'),
    'an array that no shard has': lambda c: c['arrays'].update(more=dict(c['arrays']['table'])),
    'an entry that is none': lambda c: c['arrays'].update(more=None),
}


@pytest.mark.parametrize('wrong', WRONG)
def test_a_manifest_that_contradicts_itself_is_damaged(tmp_path, messages, wrong):
    write(tmp_path, 1)
    path = write(tmp_path, 2)
    rewrite(path, WRONG[wrong])
    assert_whole(newest(str(tmp_path)), 1)
    assert path in messages.text


def test_no_name_leads_out_of_the_checkpoint(tmp_path):
    """Shards have numbers, so that a manifest cannot name any other file."""
    path = write(tmp_path, 1)
    with open(os.path.join(path, 'manifest.json')) as handle:
        assert '.safetensors' not in handle.read()


# ------------------------------------------------------------------------------------------------- fuzzing

FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def assert_sound_or_error(path, step):
    """Reading returns the written arrays, or raises CheckpointError."""
    try:
        reader = Reader(path)
        reader.verify()
    except CheckpointError:
        return
    assert_whole(reader, step)


@FUZZ
@given(file=st.integers(0, 100), bits=st.lists(st.integers(0, 1 << 20), min_size=1, max_size=4))
def test_flipped_bits(tmp_path, pristine, file, bits):
    path = fresh(tmp_path, pristine)
    files = sorted(os.listdir(path))
    victim = os.path.join(path, files[file % len(files)])
    for bit in bits:
        flip(victim, bit % (8 * os.path.getsize(victim)))
    assert_sound_or_error(path, 3)


@FUZZ
@given(file=st.integers(0, 100), data=st.one_of(
    st.binary(max_size=200), st.text(max_size=100).map(str.encode),
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner)
                 | st.dictionaries(st.sampled_from(['content', 'blake2b', 'arrays', 'shards', 'step', 'x']), inner),
                 max_leaves=15).map(lambda value: json.dumps(value).encode())))
def test_other_bytes(tmp_path, pristine, file, data):
    path = fresh(tmp_path, pristine)
    files = sorted(os.listdir(path))
    victim = os.path.join(path, files[file % len(files)])
    with open(victim, 'wb') as handle:
        handle.write(data)
    with pytest.raises(CheckpointError):
        reader = Reader(path)
        reader.verify()


@FUZZ
@given(value=st.recursive(st.none() | st.booleans() | st.integers(-5, 1 << 70) | st.floats() | st.text(max_size=3),
                          lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(
                              ['dtype', 'shape', 'pieces', 'bytes', 'blake2b', 'table']), inner), max_leaves=12),
       where=st.sampled_from([('step',), ('shards',), ('arrays',), ('arrays', 'table'), ('arrays', 'table', 'shape'),
                              ('arrays', 'table', 'pieces'), ('arrays', 'table', 'dtype'), ('arrays', 'scalar'),
                              ('format',)]))
def test_other_values_with_a_right_digest(tmp_path, pristine, value, where):
    path = fresh(tmp_path, pristine)

    def change(content):
        for name in where[:-1]:
            content = content[name]
        content[where[-1]] = value

    rewrite(path, change)
    try:
        reader = Reader(path)
        reader.verify()
    except CheckpointError:
        return
    for name, entry in reader.content['arrays'].items():
        size = int(np.prod(entry['shape'], dtype=np.int64))
        assert reader.read(name, 0, size).shape == (size,)


@FUZZ
@given(data=st.binary(max_size=300))
def test_a_shard_of_other_bytes_with_a_right_digest(tmp_path, pristine, data):
    path = fresh(tmp_path, pristine)
    with open(os.path.join(path, '00000.safetensors'), 'wb') as handle:
        handle.write(data)
    rewrite(path, lambda content: content['shards'][0].update(bytes=len(data),
                                                              blake2b=checkpoint_manifest.digest(data)))
    with pytest.raises(Damaged, match='00000.safetensors'):
        Reader(path).verify()


@pytest.fixture(scope='module')
def pristine(tmp_path_factory):
    """The files of a whole checkpoint of step 3."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_files, 'SHARD_BYTES', 64)
        path = write(tmp_path_factory.mktemp('pristine'), 3)
    files = {}
    for name in os.listdir(path):
        with open(os.path.join(path, name), 'rb') as handle:
            files[name] = handle.read()
    return files


def fresh(tmp_path, pristine):
    """The path of a whole checkpoint, written without a flush."""
    for name, data in pristine.items():
        with open(str(tmp_path / name), 'wb') as handle:
            handle.write(data)
    return str(tmp_path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize('text', ['[' * 100000, '{"a":' * 100000, '9' * 1000000, '-' + '9' * 5000, '1e' + '9' * 100000],
                         ids=['lists', 'dicts', 'digits', 'negative', 'exponent'])
def test_json_made_to_hurt(tmp_path, text):
    path = write(tmp_path, 1)
    with open(os.path.join(path, 'manifest.json'), 'w') as handle:
        handle.write('{"blake2b": "", "content": {"step": %s}}' % text)
    with pytest.raises(Damaged, match='manifest.json'):
        Reader(path)


# ------------------------------------------------------------------------------------------------- extra

@pytest.mark.parametrize('value', [object(), {1, 2}, np.zeros(2), b'bytes', {'a': [np.float32(1)]}, 10 ** 5000],
                         ids=['object', 'set', 'array', 'bytes', 'deep', 'huge'])
def test_values_that_json_cannot_hold_are_refused(value):
    with pytest.raises(InputError, match='extra is not a JSON value'):
        plain(value, 'extra')


def test_a_value_that_contains_itself_is_refused():
    value = []
    value.append(value)
    with pytest.raises(InputError, match='extra is not a JSON value'):
        plain(value, 'extra')


# ------------------------------------------------------------------------------------------------- the disk

FULL = """
import resource, sys
sys.path[:0] = %r
from mxhybrid.checkpoint import files as checkpoint_files, folder, manifest as checkpoint_manifest
import test_files as tests
checkpoint_files.SHARD_BYTES = 1 << 20
import numpy as np
directory = sys.argv[1]
tests.write(directory, 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    with folder.locked(directory), checkpoint_files.Writer(directory) as writer:
        elements = int(sys.argv[3])
        writer.add('a', (elements,), 'float32', [np.ones(elements)])
        writer.commit(2, {'extra': 'x' * 100000}, 3)
except OSError as error:
    print('errno', error.errno)
"""


@pytest.mark.parametrize('limit, elements', [(5000, 10 ** 5), (10 ** 5, 10)],
                         ids=['half a shard', 'half a manifest'])
def test_files_that_cannot_grow_leave_what_was(tmp_path, limit, elements):
    """Limit the size of files, as a full disk does, in a process of its own."""
    package = os.path.dirname(os.path.dirname(checkpoint_files.__file__))
    script = FULL % [os.path.dirname(__file__), os.path.dirname(package)]
    done = subprocess.run([sys.executable, '-c', script, str(tmp_path), str(limit), str(elements)],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=60)
    assert done.stdout.strip() == 'errno %d' % errno.EFBIG, done.stdout
    assert os.listdir(str(tmp_path)) == ['00000001-step-1']
    assert_whole(newest(str(tmp_path)), 1)


def test_files_and_directories_are_flushed_before_the_name_is_there(tmp_path, monkeypatch):
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


def test_the_newest_checkpoint_stays_until_it_is_closed(tmp_path):
    with NewestCheckpoint(str(tmp_path)) as checkpoint:
        assert not checkpoint.find()
    write(tmp_path, 1)
    with NewestCheckpoint(str(tmp_path)) as checkpoint:
        assert checkpoint.find()
        write(tmp_path, 2, keep=1)
        assert checkpoint.path == str(tmp_path / '00000001-step-1') and checkpoint.content['step'] == 1
        assert_whole(checkpoint, 1)
    write(tmp_path, 3, keep=1)
    assert names(str(tmp_path)) == ['00000003-step-3']


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


def test_other_folders_keep_nobody_from_reading_checkpoints(tmp_path, messages):
    write(tmp_path, 1)
    os.mkfifo(str(tmp_path / '00000002-step-2'))
    (tmp_path / '00000003-step-3').symlink_to(tmp_path / 'nowhere')
    with kept(str(tmp_path)) as found:
        assert found == ['00000003-step-3', '00000002-step-2', '00000001-step-1']
        assert_whole(newest(str(tmp_path), found), 1)
    write(tmp_path, 4, keep=1)
    assert names(str(tmp_path))[0] == '00000004-step-4' and '00000001-step-1' not in names(str(tmp_path))
