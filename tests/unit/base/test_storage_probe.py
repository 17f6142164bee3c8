"""Directories for rows in files: problems, and the file systems that have them."""
import errno
import os

import pytest

from mxhybrid.base.errors import SettingError
from mxhybrid.base.proc import boot_id
from mxhybrid.base.storage_probe import problem_with, refuse_problems, reserves_blocks, volume_of

pytestmark = pytest.mark.both_pythons


def failing(number):
    """Return a function that fails with an error number of the system."""
    def fail(*arguments):
        raise OSError(number, os.strerror(number))
    return fail


def test_the_message_names_table_directory_hosts_and_remedy():
    refuse_problems('net_users', '/scratch', [])
    with pytest.raises(SettingError) as caught:
        refuse_problems('net_users', '/scratch', [('b', 'is full'), ('a', 'is missing'), ('a', 'is missing')])
    assert str(caught.value) == (
        "net_users: storage='/scratch' is missing on host a, is full on host b: give a directory that exists, can be "
        "written and has room on every host with servers, or storage='memory' (MXHYBRID_STORAGE)")


def test_a_directory_that_can_hold_rows_stays_empty(tmp_path):
    assert problem_with(str(tmp_path)) == '' and reserves_blocks(str(tmp_path)) and not list(tmp_path.iterdir())


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


def test_the_file_system_of_a_directory(tmp_path):
    root, local, shared = tmp_path / 'root', tmp_path / 'local', tmp_path / 'a b' / 'shared'
    for directory in (local, shared, root / 'proc/self'):
        directory.mkdir(parents=True)
    (root / 'proc/self/mountinfo').write_text(
        '20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n'
        '21 20 0:40 / %s rw - tmpfs tmpfs rw\n'
        '22 20 0:41 /exports/rows %s rw - nfs4 server:/exports rw\n'
        '23 20 0:42 / %s-of-another rw - xfs /dev/sdb1 rw\n'
        % (tmp_path / 'elsewhere', str(tmp_path / 'a b').replace(' ', '\\040'), local))
    volume = volume_of(str(local), str(root))
    assert volume[:2] == ('ext4', '/dev/sda1') and not volume.is_remote and volume.identity.startswith(boot_id() + ' ')
    assert 0 < volume.free_bytes <= volume.size_bytes
    (tmp_path / 'link').symlink_to(shared)
    for path in (shared, tmp_path / 'link'):
        volume = volume_of(str(path), str(root))
        assert volume.is_remote and volume.identity == 'nfs4 server:/exports /exports/rows'


def test_the_file_system_of_a_directory_of_this_machine(tmp_path):
    assert volume_of(str(tmp_path)).identity == volume_of(str(tmp_path)).identity
    assert volume_of('/proc').kind == 'proc' != volume_of(str(tmp_path)).kind
