"""Directories for the rows of dynamic tables: problems are named before a table is made."""
import fcntl
import os
import threading
import time

import pytest

from mxhybrid.base.errors import SettingError
from mxhybrid.servers.storage import abandon_folder, folder_name, refuse_problems, remove_leftovers


def test_the_message_names_table_directory_hosts_and_remedy():
    refuse_problems('net_users', '/scratch', [])
    with pytest.raises(SettingError) as caught:
        refuse_problems('net_users', '/scratch', [('b', 'is full'), ('a', 'is missing'), ('a', 'is missing')])
    assert str(caught.value) == (
        "net_users: storage='/scratch' is missing on host a, is full on host b: give a directory that exists, can be "
        "written and has room on every host with servers, or storage='memory' (MXHYBRID_STORAGE)")


def test_folders_of_tables_differ():
    names = {folder_name('../../net/users weight') for _ in range(10)}
    assert len(names) == 10 and all(os.path.basename(name) == name and name[0] != '.' for name in names)
    assert len(folder_name('x' * 1000)) < 200


def hold(partition):
    """Make the folder of a partition, as a store does; return the descriptor of its lock, which it holds."""
    partition.mkdir(parents=True)
    descriptor = os.open(str(partition / 'lock'), os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def test_a_server_that_is_being_killed_is_waited_for(tmp_path):
    folder = tmp_path / folder_name('users')
    killed = hold(folder / '1')
    timer = threading.Timer(0.2, os.close, [killed])
    timer.start()
    abandon_folder(str(folder), [0], deadline=time.monotonic() + 60)
    timer.join()
    assert not list(tmp_path.iterdir())


def test_a_server_that_fails_removes_its_partitions_and_those_of_killed_servers(tmp_path):
    folder = tmp_path / folder_name('users')
    remaining, other, killed = (hold(folder / part) for part in '013')
    os.close(killed)
    abandon_folder(str(folder), [0])
    assert [path.name for path in folder.iterdir()] == ['1'] and (folder / '1' / 'lock').exists()
    os.close(other)
    abandon_folder(str(folder), [])
    assert not list(tmp_path.iterdir())
    abandon_folder(str(folder), [0])  # another server was quicker
    os.close(remaining)


def test_leftovers_of_jobs_that_were_killed(tmp_path):
    old, new, used = (tmp_path / folder_name(name) for name in ('old', 'new', 'used'))
    for folder in (old, new):
        os.close(hold(folder / '0'))
    lock = hold(used / '0')
    (tmp_path / 'results').mkdir()
    (tmp_path / 'notes.txt').touch()
    for folder in (old, used, tmp_path / 'results'):
        os.utime(str(folder), (0, 0))
    remove_leftovers(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {new.name, used.name, 'results', 'notes.txt'}
    remove_leftovers(str(tmp_path / 'none'))
    os.close(lock)
