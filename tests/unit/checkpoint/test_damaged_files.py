"""Damaged checkpoints: every damage is detected and named, also damage by random bits, bytes and values."""
import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings, strategies as st

from mxhybrid.base.errors import CheckpointError
from mxhybrid.checkpoint import files as checkpoint_files
from mxhybrid.checkpoint.reader import Damaged, Reader, newest

from ...helpers.checkpoints import arrays, assert_whole, rewrite_manifest, write

pytestmark = [pytest.mark.both_pythons, pytest.mark.usefixtures('small_shards')]

DAMAGES = {
    'gone': os.remove,
    'empty': lambda path: os.truncate(path, 0),
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
    data = bytearray(Path(path).read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    Path(path).write_bytes(data)


@pytest.mark.parametrize('damage', DAMAGES)
@pytest.mark.parametrize('file', ['manifest.json', '00000.safetensors', 'last'])
def test_a_damaged_newest_gives_way_to_the_one_before(tmp_path, caplog, file, damage):
    write(tmp_path, 1)
    path = write(tmp_path, 2)
    if file == 'last':
        file = max(name for name in os.listdir(path) if name.endswith('.safetensors'))
    DAMAGES[damage](os.path.join(path, file))
    assert_whole(newest(str(tmp_path)), 1)
    warning, = set(caplog.messages)
    assert os.path.join(path, file) in warning and 'damaged' in warning


def test_a_checkpoint_that_is_a_file_gives_way(tmp_path, caplog):
    write(tmp_path, 1)
    (tmp_path / '00000002-step-2').write_bytes(b'')
    assert_whole(newest(str(tmp_path)), 1)
    assert '00000002-step-2/manifest.json cannot be read: Not a directory' in caplog.text


def test_nothing_whole_is_an_error_not_a_new_beginning(tmp_path):
    first, second = write(tmp_path, 1), write(tmp_path, 2)
    flip(os.path.join(first, '00001.safetensors'), 800)
    os.remove(os.path.join(second, 'manifest.json'))
    with pytest.raises(CheckpointError, match='no checkpoint in .* is whole: .*manifest.json.*00001.safetensors') as e:
        newest(str(tmp_path))
    assert 'Remove the directory to start again' in str(e.value)


def test_shards_that_changed_places_are_noticed(tmp_path):
    path = write(tmp_path, 1)
    first, second = (Path(path) / ('%05d.safetensors' % number) for number in (0, 1))
    data = first.read_bytes()
    second.replace(first)
    second.write_bytes(data)
    with pytest.raises(CheckpointError, match='00000.safetensors'):
        newest(str(tmp_path))


def test_damage_after_the_check_is_noticed(tmp_path):
    path = write(tmp_path, 1)
    reader = newest(str(tmp_path))
    reader.read('table', 0, 1)
    assert len(reader.content['shards']) > 2
    flip(os.path.join(path, '00001.safetensors'), 900)
    with pytest.raises(Damaged, match='00001.safetensors does not match its digest'):
        for name, array in arrays(1).items():
            reader.read(name, 0, array.size)


@pytest.mark.parametrize('number', [1, 2, 4, None])
def test_another_format_is_not_damage(tmp_path, number):
    write(tmp_path, 1)
    path = write(tmp_path, 2)
    rewrite_manifest(path, lambda content: content.update(format=number, mxhybrid='9.0'))
    message = '%s/manifest.json has format %s, but this version of mxhybrid reads format 3: load it with mxhybrid 9.0, '
    with pytest.raises(CheckpointError, match=message % (path, number)) as error:
        newest(str(tmp_path))
    assert not isinstance(error.value, Damaged)


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


WRONG = {
    'a step of words': lambda c: c.update(step='two'),
    'a negative step': lambda c: c.update(step=-1),
    'no shards': lambda c: c.pop('shards'),
    'no arrays': lambda c: c.pop('arrays'),
    'arrays in a list': lambda c: c.update(arrays=[]),
    'a shard too few': lambda c: c['shards'].pop(),
    'a shard of a terabyte': lambda c: c['shards'][0].update(bytes=1 << 40),
    'a shard without digest': lambda c: c['shards'][0].pop('xxh3_128'),
    'a digest that is no text': lambda c: c['shards'][0].update(xxh3_128=1),
    'an unknown digest': lambda c: c['shards'][0].update(md5=c['shards'][0].pop('xxh3_128')),
    'two digests': lambda c: c['shards'][0].update(blake2b=''),
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
def test_a_manifest_that_contradicts_itself_is_damaged(tmp_path, caplog, wrong):
    write(tmp_path, 1)
    path = write(tmp_path, 2)
    rewrite_manifest(path, WRONG[wrong])
    assert_whole(newest(str(tmp_path)), 1)
    assert path in caplog.text


def test_no_name_leads_out_of_the_checkpoint(tmp_path):
    """Shards have numbers, so that a manifest cannot name any other file."""
    path = write(tmp_path, 1)
    assert '.safetensors' not in (Path(path) / 'manifest.json').read_text()


FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def assert_sound_or_error(path, step):
    """Reading returns the written arrays, or raises CheckpointError."""
    try:
        reader = Reader(path)
        reader.verify()
    except CheckpointError:
        return
    assert_whole(reader, step)


def one_file(path, number):
    files = sorted(Path(path).iterdir())
    return files[number % len(files)]


@FUZZ
@given(file=st.integers(0, 100), bits=st.lists(st.integers(0, 1 << 20), min_size=1, max_size=4))
def test_flipped_bits(tmp_path, pristine, file, bits):
    path = fresh(tmp_path, pristine)
    victim = one_file(path, file)
    for bit in bits:
        flip(victim, bit % (8 * victim.stat().st_size))
    assert_sound_or_error(path, 3)


@FUZZ
@given(file=st.integers(0, 100), data=st.one_of(
    st.binary(max_size=200), st.text(max_size=100).map(str.encode),
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner)
                 | st.dictionaries(st.sampled_from(['content', 'blake2b', 'arrays', 'shards', 'step', 'x']), inner),
                 max_leaves=15).map(lambda value: json.dumps(value).encode())))
def test_other_bytes(tmp_path, pristine, file, data):
    path = fresh(tmp_path, pristine)
    one_file(path, file).write_bytes(data)
    with pytest.raises(CheckpointError):
        Reader(path).verify()


@FUZZ
@given(value=st.recursive(st.none() | st.booleans() | st.integers(-5, 1 << 70) | st.floats() | st.text(max_size=3),
                          lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(
                              ['dtype', 'shape', 'pieces', 'bytes', 'xxh3_128', 'blake2b', 'table']), inner),
                          max_leaves=12),
       where=st.sampled_from([('step',), ('shards',), ('arrays',), ('arrays', 'table'), ('arrays', 'table', 'shape'),
                              ('arrays', 'table', 'pieces'), ('arrays', 'table', 'dtype'), ('arrays', 'scalar'),
                              ('format',)]))
def test_other_values_with_a_right_digest(tmp_path, pristine, value, where):
    path = fresh(tmp_path, pristine)

    def change(content):
        for name in where[:-1]:
            content = content[name]
        content[where[-1]] = value

    rewrite_manifest(path, change)
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
    (tmp_path / '00000.safetensors').write_bytes(data)
    rewrite_manifest(path, lambda content: content['shards'][0].update(bytes=len(data),
                                                              xxh3_128=xxhash.xxh3_128_hexdigest(data)))
    with pytest.raises(Damaged, match='00000.safetensors'):
        Reader(path).verify()


@pytest.fixture(scope='module')
def pristine(tmp_path_factory):
    """The files of a whole checkpoint of step 3."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_files, 'SHARD_BYTES', 64)
        path = write(tmp_path_factory.mktemp('pristine'), 3)
    return {file.name: file.read_bytes() for file in Path(path).iterdir()}


def fresh(tmp_path, pristine):
    """The path of a whole checkpoint, written without a flush."""
    for name, data in pristine.items():
        (tmp_path / name).write_bytes(data)
    return str(tmp_path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize('text', ['[' * 100000, '{"a":' * 100000, '9' * 1000000, '-' + '9' * 5000, '1e' + '9' * 100000],
                         ids=['lists', 'dicts', 'digits', 'negative', 'exponent'])
def test_json_made_to_hurt(tmp_path, text):
    path = write(tmp_path, 1)
    (Path(path) / 'manifest.json').write_text('{"blake2b": "", "content": {"step": %s}}' % text)
    with pytest.raises(Damaged, match='manifest.json'):
        Reader(path)
