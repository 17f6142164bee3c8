"""Directories for the rows of dynamic tables: problems are named before a table is made."""
import errno
import os

import pytest

from mxhybrid.base.errors import SettingError
from mxhybrid.servers.storage import folder_name, problem_with, refuse_problems


def failing(number):
    """Return a function that fails with an error number of the system."""
    def fail(*arguments):
        raise OSError(number, os.strerror(number))
    return fail


def test_a_directory_that_can_hold_rows_stays_empty(tmp_path):
    assert problem_with(str(tmp_path)) == '' and not list(tmp_path.iterdir())


def test_a_directory_that_is_missing_or_a_file(tmp_path):
    (tmp_path / 'file').touch()
    assert problem_with(str(tmp_path / 'none')) == 'is missing'
    assert problem_with(str(tmp_path / 'file')) == 'is no directory'


@pytest.mark.parametrize('number, problem', [
    (errno.ENOSPC, 'is full'), (errno.EDQUOT, 'is full'), (errno.EIO, 'cannot be written (Input/output error)'),
    (errno.EOPNOTSUPP, '')])
def test_room_is_reserved(monkeypatch, tmp_path, number, problem):
    monkeypatch.setattr(os, 'posix_fallocate', failing(number))
    assert problem_with(str(tmp_path)) == problem and not list(tmp_path.iterdir())


@pytest.mark.parametrize('number', [errno.EACCES, errno.EROFS])
def test_a_directory_that_cannot_be_written(monkeypatch, tmp_path, number):
    monkeypatch.setattr('tempfile.TemporaryFile', lambda dir: failing(number)())
    assert problem_with(str(tmp_path)) == 'cannot be written (%s)' % os.strerror(number)


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
