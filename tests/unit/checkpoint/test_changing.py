"""Changes of a dynamic table between checkpoints: a copy that follows them equals the table."""
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest
import redis
from hypothesis import given, settings, strategies as st

from mxhybrid.base.errors import CheckpointError, InputError
from mxhybrid.checkpoint import compaction, files, folder, layers
from mxhybrid.checkpoint.changing import changes
from mxhybrid.checkpoint.compaction import compact
from mxhybrid.checkpoint.read_only import open_checkpoint

from ...helpers.stored_tables import WIDTH, Table, chain, row, save
from ...helpers.waiting import until

PAGE = Path(__file__).resolve().parents[3] / 'docs' / 'serving.md'


def follow(copy, directory, since, batch_rows=3):
    """Apply the changes to a copy, a dict of rows by key; return the name of the checkpoint and the number of keys."""
    seen = set()
    with changes(directory, 'users', since, batch_rows=batch_rows) as changed:
        for batch in changed:
            assert 0 < len(batch.keys) + len(batch.removed) <= batch_rows
            assert batch.rows.shape == (len(batch.keys), WIDTH)
            keys = batch.keys.tolist() + batch.removed.tolist()
            assert len(set(keys)) == len(keys) and not seen & set(keys)
            seen.update(keys)
            copy.update(zip(batch.keys.tolist(), batch.rows.tolist()))
            for key in batch.removed.tolist():
                copy.pop(key, None)
    return changed.name, len(seen)


def assert_copy(copy, table):
    assert copy == {key: row(key, version).tolist() for key, version in table.rows.items()}


KEYS = st.integers(-20, 20)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.lists(KEYS, max_size=15), st.lists(KEYS, max_size=15), st.integers(1, 3), st.booleans()),
                min_size=1, max_size=5), st.integers(1, 9), st.booleans())
def test_tables_and_copies_against_a_dict(tmp_path_factory, steps, merged_rows, compacts):
    directory, table, copies = tmp_path_factory.mktemp('chain'), Table(), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, 'MERGED_ROWS', merged_rows)
        patch.setattr(files, 'SHARD_BYTES', 16)
        patch.setattr(compaction, 'PART_BYTES', 200)
        for number, (expired, touched, partitions, delta) in enumerate(steps):
            table.expire(*expired)
            table.touch(*touched)
            save(directory, table, number, delta=number > 0 and delta, keep=9, partitions=partitions)
            copies[number] = {}
            follow(copies[number], directory, None)
            assert_copy(copies[number], table)
        with open_checkpoint(directory) as tables:  # its files stay when it is compacted
            table.assert_is(tables['users.weight'])
            if compacts:
                compact(directory)
            for number in copies:
                if any(folder.step_of(name) == number for name in folder.names(str(directory))):
                    follow(copies[number], directory, number)
                    assert_copy(copies[number], table)
        with open_checkpoint(directory) as tables:
            table.assert_is(tables['users.weight'])


@pytest.mark.both_pythons
def test_deltas_alone_are_read(tmp_path):
    table = chain(tmp_path)
    copy = {}
    name, _ = follow(copy, tmp_path / '00000002-step-2', None)
    assert name == '00000002-step-2' and 1 in copy
    keys = tmp_path / '00000001-step-1' / 'table-00000' / '0' / 'keys.npy'
    keys.write_bytes(keys.read_bytes()[:-16] + b'\xff' * 16)  # damage that reading would notice
    assert follow(copy, tmp_path, name) == ('00000003-step-3', 3)
    assert_copy(copy, table)
    assert follow(copy, tmp_path, '00000003-step-3') == ('00000003-step-3', 0)


def test_a_checkpoint_that_was_compacted_keeps_its_name(tmp_path):
    table = chain(tmp_path)
    copy = {}
    name, _ = follow(copy, tmp_path, None)
    compact(tmp_path)
    assert follow(copy, tmp_path, name) == ('00000003-step-3-compacted', 0)
    table.touch(8)
    save(tmp_path, table, 4, delta=True)
    assert follow(copy, tmp_path, name) == ('00000004-step-4', 1)
    assert_copy(copy, table)


def test_a_step_that_was_saved_twice(tmp_path):
    """The name of a checkpoint finds the one of the job before it went back; its step finds the later one."""
    table = chain(tmp_path)
    copy = {}
    name, _ = follow(copy, tmp_path, None)
    other = Table()
    other.touch(2, 400)
    save(tmp_path, other, 3, keep=9)
    assert follow(dict(copy), tmp_path, 3)[1] == 0
    follow(copy, tmp_path, name)
    assert_copy(copy, other)
    assert table.rows != other.rows


@pytest.mark.both_pythons
@pytest.mark.parametrize('arguments, kind, message', [
    (('users', 7), CheckpointError, r'since=7 is gone from .*, which has 00000001-step-1, .*3: give since=None'),
    (('users', '00000007-step-7'), CheckpointError, "since='00000007-step-7' is gone"),
    (('dense', 1), InputError, "has no dynamic table 'dense': give one of users.weight"),
    (('items', 1), InputError, "has no dynamic table 'items'"),
    (('users', 1, 0), InputError, 'batch_rows=0 is not a count')], ids=str)
def test_wrong_calls(tmp_path, arguments, kind, message):
    chain(tmp_path)
    with pytest.raises(kind, match=message):
        changes(tmp_path, *arguments[:2], **dict(zip(['batch_rows'], arguments[2:])))
    handle = folder.open_at_once(str(tmp_path / '00000003-step-3'))
    assert not folder.is_read_by_others(handle)  # no lock is left
    os.close(handle)


@pytest.fixture
def redis_port(tmp_path):
    """Start a Redis server; return its port."""
    program = shutil.which('redis-server')
    if program is None:
        (pytest.fail if os.environ.get('CI') else pytest.skip)('needs redis-server: apt-get install redis-server')
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([program, '--port', str(port), '--bind', '127.0.0.1', '--save', '', '--dir',
                               str(tmp_path)], stdout=subprocess.DEVNULL)

    def answers():
        assert server.poll() is None
        with socket.socket() as probe:
            return probe.connect_ex(('127.0.0.1', port)) == 0
    try:
        until(answers)
        yield port
    finally:
        server.kill()
        server.wait()


def test_the_recipe_for_redis(tmp_path, redis_port, monkeypatch):
    recipe, = (block for block in re.findall(r'```python\n(.*?)```', PAGE.read_text(), re.DOTALL) if 'redis' in block)
    client = redis.Redis(port=redis_port)
    monkeypatch.setattr(redis, 'Redis', lambda: client)
    monkeypatch.chdir(tmp_path)
    table = chain(tmp_path / 'checkpoints')

    def check():
        exec(compile(recipe, str(PAGE), 'exec'), {})
        stored = {int(key): np.frombuffer(value, np.float32).tolist() for key, value in client.hgetall('users').items()}
        assert_copy(stored, table)

    check()
    table.touch(1000, 2)
    table.expire(12)
    save(tmp_path / 'checkpoints', table, 4, delta=True)
    check()
    compact(tmp_path / 'checkpoints')
    check()
    shutil.rmtree(str(tmp_path / 'checkpoints'))
    table = chain(tmp_path / 'checkpoints')
    client.set('users:checkpoint', '00000009-step-9')
    with pytest.raises(CheckpointError, match='is gone'):
        check()
