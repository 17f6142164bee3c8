"""Directories whose names are flushed to the disk."""
import errno
import os

import pytest

from mxhybrid.base.files import sync_directory

pytestmark = pytest.mark.both_pythons


def fail_with(error, monkeypatch):
    """Let fsync fail with an error number."""
    def failing(handle):
        raise OSError(error, 'no disk')
    monkeypatch.setattr(os, 'fsync', failing)


@pytest.mark.parametrize('error', [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_is_an_error(tmp_path, monkeypatch, error):
    fail_with(error, monkeypatch)
    with pytest.raises(OSError, match='no disk'):
        sync_directory(str(tmp_path))


@pytest.mark.parametrize('error', [errno.EINVAL, errno.ENOTSUP])
def test_a_directory_need_not_be_flushable(tmp_path, monkeypatch, error):
    fail_with(error, monkeypatch)
    sync_directory(str(tmp_path))
