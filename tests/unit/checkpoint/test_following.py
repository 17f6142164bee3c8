"""Tables that follow the newest checkpoint: threads look up rows while checkpoints come, are merged and go."""
import itertools
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mxhybrid.base.errors import CheckpointError
from mxhybrid.checkpoint import folder
from mxhybrid.checkpoint.compaction import compact
from mxhybrid.checkpoint.following import open_tables

from ...helpers.stored_tables import Table, chain, save

KEYS = np.arange(300)


@pytest.mark.both_pythons
def test_lookups_while_checkpoints_come_and_go(tmp_path):
    table = Table()
    table.touch(*KEYS.tolist())
    save(tmp_path, table, 1)
    tables, ends = open_tables(tmp_path), threading.Event()

    def look_up():
        for number in itertools.count(1):
            current = tables.current
            versions = set(current['users'].rows(KEYS)[:, 1].tolist())
            assert versions == {float(current.step)}
            assert current['dense'].numpy()[0, 0] == current.step  # from a file that is opened late
            assert len(set(tables['users'].rows(KEYS)[:, 1].tolist())) == 1
            if ends.is_set():
                return number

    def compact_all():
        while not ends.wait(0.01):
            compact(tmp_path)

    with ThreadPoolExecutor() as threads:
        looking, compacting = [threads.submit(look_up) for _ in range(3)], threads.submit(compact_all)
        try:
            for _ in range(12):
                table.touch(*KEYS.tolist())
                save(tmp_path, table, table.version, delta=table.version % 5 > 0, keep=1)
                assert tables.reload()
                assert tables.step == table.version and 0 <= tables.age_s < 60
        finally:
            ends.set()
        compacting.result(30)
        assert min(thread.result(30) for thread in looking) > 10


def test_a_table_keeps_its_checkpoint(tmp_path):
    table = chain(tmp_path)
    tables = open_tables(tmp_path)
    assert not tables.reload() and list(tables) == ['dense', 'users.weight'] and len(tables) == 2
    users, dense = tables['users'], tables['dense']
    later = Table()
    later.touch(1)
    save(tmp_path, later, 4, keep=1)
    assert tables.reload() and not tables.reload() and tables.step == 4
    table.assert_is(users)
    later.assert_is(tables['users'])
    save(tmp_path, later, 5, keep=1)
    assert [folder.number_of(name) for name in folder.names(str(tmp_path))] == [5, 4, 3, 2, 1]
    assert dense.numpy()[0, 0] == 3
    del users, dense
    tables.reload()
    save(tmp_path, later, 6, keep=1)
    assert [folder.number_of(name) for name in folder.names(str(tmp_path))] == [6, 5]  # the current one, and the newest


def test_a_reload_needs_no_lock_of_the_directory(tmp_path):
    table = chain(tmp_path)
    tables = open_tables(tmp_path)
    table.touch(3)
    save(tmp_path, table, 4, delta=True)
    with folder.locked(str(tmp_path)):  # as long as a job saves
        started = time.monotonic()
        assert tables.reload() and open_tables(tmp_path).step == 4
        assert time.monotonic() - started < 20
    table.assert_is(tables['users'])


def test_damaged_checkpoints_change_nothing(tmp_path, caplog):
    table = chain(tmp_path)
    tables = open_tables(tmp_path)
    other = Table()
    other.touch(5)
    path = save(tmp_path, other, 4)
    os.remove(os.path.join(path, 'table-00000', '0', 'rows.npy'))
    assert not tables.reload()
    table.assert_is(tables['users'])
    for name in folder.names(str(tmp_path)):
        os.remove(str(tmp_path / name / 'manifest.json'))
    with pytest.raises(CheckpointError, match='is whole'):
        tables.reload()
    table.assert_is(tables['users'])


def test_the_age_is_that_of_the_rows(tmp_path, monkeypatch):
    chain(tmp_path)
    tables = open_tables(tmp_path)
    saved_at = tables.current.saved_at
    time.sleep(0.01)
    compact(tmp_path)
    assert tables.reload() and tables.current.saved_at == saved_at
    monkeypatch.setattr(time, 'time', lambda: saved_at + 90.0)
    assert tables.age_s == 90
