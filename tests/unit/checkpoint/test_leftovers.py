"""Files that cannot be removed from a directory of checkpoints, or are no checkpoints, do not prevent a save there."""
import errno
import os
import shutil
import socket

import pytest

from mxhybrid.checkpoint import leftovers
from mxhybrid.checkpoint.folder import kept, names
from mxhybrid.checkpoint.reader import newest

from ...helpers.checkpoints import assert_whole, write

pytestmark = pytest.mark.both_pythons


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    """Each test gets a list of leftovers."""
    monkeypatch.setattr(leftovers, '_left', set())


@pytest.fixture
def undeletable(monkeypatch):
    """Call it with a part of a name: such files cannot be unlinked, as immutable ones and those of others cannot."""
    parts = []
    unlink = os.unlink

    def refusing(path, **more):
        if any(part in os.path.basename(os.fspath(path)) for part in parts):
            raise PermissionError(errno.EACCES, 'Permission denied', path)
        unlink(path, **more)

    monkeypatch.setattr(os, 'unlink', refusing)
    return parts.append


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == 'WARNING']


def write_each(directory, steps, keep):
    """Write a checkpoint of each step, and check that it is the newest one."""
    for step in steps:
        write(directory, step, keep=keep)
        assert_whole(newest(str(directory)), step)


@pytest.fixture(params=['absolute', 'relative'])
def linked_run(request, tmp_path):
    """Return a directory in which a link stands for the checkpoint of step 1, and the directory of the checkpoint."""
    path = write(tmp_path / 'run', 1)
    os.rename(path, str(tmp_path / 'archive'))
    os.symlink('../archive' if request.param == 'relative' else str(tmp_path / 'archive'), path)
    return tmp_path / 'run', tmp_path / 'archive'


def test_a_checkpoint_behind_a_link_loses_the_link(linked_run, caplog):
    directory, elsewhere = linked_run
    write_each(directory, range(2, 7), keep=2)
    assert sorted(os.listdir(str(directory))) == ['00000005-step-5', '00000006-step-6']
    elsewhere.rename(directory / '00000009-step-1')
    assert_whole(newest(str(directory)), 1)
    assert warnings(caplog) == []


def test_a_linked_checkpoint_that_is_read_stays_until_then(linked_run):
    directory, elsewhere = linked_run
    with kept(str(directory)) as found:
        write(directory, 2, keep=1)
        assert_whole(newest(str(directory), found), 1)
    write(directory, 3, keep=1)
    assert os.listdir(str(directory)) == ['00000003-step-3'] and elsewhere.is_dir()


def test_the_directory_may_be_a_link_itself(tmp_path):
    (tmp_path / 'disk').mkdir()
    (tmp_path / 'run').symlink_to('disk')
    write_each(tmp_path / 'run', (1, 2, 3), keep=1)
    assert (tmp_path / 'run').is_symlink() and os.listdir(str(tmp_path / 'disk')) == ['00000003-step-3']


ODD = {
    'a file': lambda path: path.write_bytes(b'x'),
    'a full directory': lambda path: (path / 'deep' / 'er').mkdir(parents=True),
    'a directory without permissions': lambda path: path.mkdir(mode=0),
    'a link to a directory': lambda path: path.symlink_to('../mine'),
    'a link to a file': lambda path: path.symlink_to('../mine/file'),
    'a link to nowhere': lambda path: path.symlink_to('nowhere'),
    'a link to itself': lambda path: path.symlink_to(path.name),
    'a pipe': lambda path: os.mkfifo(str(path)),
    'a directory with links': lambda path: (path.mkdir(), (path / 'link').symlink_to('../../mine')),
    'names with newlines': lambda path: (path.mkdir(), (path / 'a\nb').write_bytes(b'')),
}


@pytest.mark.parametrize('name', ['.writing', '.removing', '.writing-1', '00000001-step-0'])
@pytest.mark.parametrize('odd', ODD)
def test_only_files_with_names_of_checkpoints_are_removed(tmp_path, caplog, odd, name):
    directory, mine = tmp_path / 'run', tmp_path / 'mine'
    directory.mkdir()
    mine.mkdir()
    (mine / 'file').write_bytes(b'mine')
    (directory / '.writing.txt').write_bytes(b'mine')
    ODD[odd](directory / name)
    if name.startswith('.'):
        assert names(str(directory)) == [] and newest(str(directory)) is None
    write_each(directory, (1, 2, 3), keep=2)
    found = sorted(os.listdir(str(directory)))
    assert [one[9:] for one in found if one != '.writing.txt'] == ['step-2', 'step-3']
    assert '.writing.txt' in found and (mine / 'file').read_bytes() == b'mine'
    assert warnings(caplog) == []


@pytest.mark.parametrize('name', ['.writing', '.removing'])
def test_a_leftover_that_stays_is_logged_once(tmp_path, caplog, undeletable, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'stuck').write_bytes(b'')
    (tmp_path / name / 'large').write_bytes(b'')
    undeletable('stuck')
    write_each(tmp_path, range(1, 6), keep=2)
    assert sorted(os.listdir(str(tmp_path))) == [name, '00000004-step-4', '00000005-step-5']
    assert os.listdir(str(tmp_path / name)) == ['stuck']  # the rest takes no room
    warning, = warnings(caplog)
    assert str(tmp_path / name) in warning and 'Permission denied' in warning and 'left' in warning


def test_old_checkpoints_that_stay_are_logged_once(tmp_path, caplog, undeletable):
    undeletable('00000.safetensors')
    write_each(tmp_path, range(1, 6), keep=2)
    assert names(str(tmp_path)) == ['00000005-step-5', '00000004-step-4']
    assert sorted(os.listdir(str(tmp_path)))[:3] == ['.removing', '.removing-1', '.removing-2']
    assert len(warnings(caplog)) == len(set(warnings(caplog))) == 3
    undeletable.__self__.clear()  # as the files of a busy NFS are gone some time later
    write(tmp_path, 6, keep=2)
    assert sorted(os.listdir(str(tmp_path))) == ['00000005-step-5', '00000006-step-6']
    undeletable('00000.safetensors')
    write(tmp_path, 7, keep=2)
    assert len(warnings(caplog)) == 4  # a new one at the old place


def test_a_checkpoint_that_cannot_be_renamed_stays_whole(tmp_path, caplog, monkeypatch):
    """Somebody else's in a sticky directory, a mount point."""
    rename = os.rename

    def refusing(source, target):
        if '.removing' in str(target):
            raise OSError(errno.EBUSY, 'Device or resource busy', source)
        rename(source, target)

    monkeypatch.setattr(os, 'rename', refusing)
    write_each(tmp_path, range(1, 5), keep=2)
    stored = sorted(os.listdir(str(tmp_path)))
    assert stored == ['0000000%d-step-%d' % (step, step) for step in (1, 2, 3, 4)]
    for step, name in enumerate(stored, 1):
        assert_whole(newest(str(tmp_path), [name]), step)
    assert len(warnings(caplog)) == 2 and all('busy' in text for text in warnings(caplog))


def test_a_socket_named_like_a_checkpoint_stays(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind('00000001-step-0')
    write_each(tmp_path, (1, 2, 3), keep=1)
    assert sorted(os.listdir(str(tmp_path))) == ['00000001-step-0', '00000004-step-3']
    assert len(warnings(caplog)) == 1


def test_a_file_system_in_a_checkpoint_keeps_files(tmp_path, monkeypatch, caplog):
    path = write(tmp_path / 'with space', 1)
    os.mkdir(os.path.join(path, 'data'))
    point = os.path.join(os.path.realpath(path), 'data')
    table = tmp_path / 'mountinfo'
    shutil.copyfile(leftovers._MOUNTS, str(table))
    with table.open('a') as file:
        file.write('99 1 0:42 / %s rw,relatime - tmpfs none rw\n' % point.replace(' ', '\\040'))
    monkeypatch.setattr(leftovers, '_MOUNTS', str(table))
    write_each(tmp_path / 'with space', (2, 3), keep=1)
    assert os.path.isdir(point) and names(str(tmp_path / 'with space')) == ['00000003-step-3', '00000001-step-1']
    warning, = warnings(caplog)
    assert 'mounted' in warning and point in warning
