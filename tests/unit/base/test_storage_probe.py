"""Directories for rows in files: problems, and the file systems that have them."""
import errno
import os

import pytest

from mxhybrid.base.storage_probe import problem_with

pytestmark = pytest.mark.both_pythons


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
