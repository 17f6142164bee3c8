"""Files: written whole or not at all, directories that are flushed to the disk, and digests with their records."""
import contextlib
import errno
import os
import signal
import subprocess
import sys
import tempfile

import pytest

from mxhybrid.base import files
from mxhybrid.base.file_digest import FileDigest, is_record

pytestmark = pytest.mark.both_pythons


def fail_with(error, monkeypatch):
    """Let fsync fail with an error number."""
    def failing(handle):
        raise OSError(error, os.strerror(error))
    monkeypatch.setattr(os, 'fsync', failing)


# ------------------------------------------------------------------------------------------ atomic writes


@pytest.fixture(params=['nameless files', 'named files only'])
def file_system(request, monkeypatch):
    if request.param == 'named files only':
        monkeypatch.setattr(files, '_nameless', lambda directory: None)


@pytest.fixture
def old(tmp_path):
    """A file that stays as it is, alone in its folder."""
    path = tmp_path / 'trainer.states'
    path.write_bytes(b'old')
    yield path
    assert path.read_bytes() == b'old' and os.listdir(str(tmp_path)) == [path.name]


def test_a_file_is_written_and_replaced(tmp_path, file_system):
    path = tmp_path / 'trainer.states'
    for data in (b'first', b'second, longer', b''):
        files.write_atomically(str(path), data)
        assert path.read_bytes() == data
    assert os.listdir(str(tmp_path)) == ['trainer.states']


def test_text_is_refused(old):
    with pytest.raises(TypeError):
        files.write_atomically(str(old), 'text is not bytes')


def test_a_full_disk_leaves_the_old_file(old, monkeypatch):
    fail_with(errno.ENOSPC, monkeypatch)
    with pytest.raises(OSError, match='No space left'):
        files.write_atomically(str(old), b'new')


def test_a_process_killed_while_writing_leaves_no_part(old):
    program = ('import os, signal, sys\nfrom mxhybrid.base import files\n'
               'files.os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n'
               'files.write_atomically(sys.argv[1], b"new")\n')
    assert subprocess.run([sys.executable, '-c', program, str(old)], timeout=60).returncode == -signal.SIGKILL


@pytest.mark.parametrize('exists', [True, False])
@pytest.mark.parametrize('relative', [True, False])
def test_a_link_stays_and_its_target_is_written(tmp_path, monkeypatch, file_system, relative, exists):
    folder, store = tmp_path / 'run', tmp_path / 'store'
    folder.mkdir()
    store.mkdir()
    if exists:
        (store / 'trainer.states').write_bytes(b'old')
    (store / 'latest').symlink_to('trainer.states')
    link = folder / 'link'
    link.symlink_to('../store/latest' if relative else store / 'latest')
    monkeypatch.chdir(folder)
    files.write_atomically('link' if relative else str(link), b'new')
    assert link.is_symlink() and (store / 'latest').is_symlink() and not (store / 'trainer.states').is_symlink()
    assert (store / 'trainer.states').read_bytes() == link.read_bytes() == b'new'
    assert os.listdir(str(folder)) == ['link'] and sorted(os.listdir(str(store))) == ['latest', 'trainer.states']


def test_a_link_to_another_file_system_is_written_there(tmp_path):
    link = tmp_path / 'link'
    with tempfile.TemporaryDirectory(dir='/dev/shm') as other:
        assert os.stat(other).st_dev != os.stat(str(tmp_path)).st_dev
        link.symlink_to(os.path.join(other, 'trainer.states'))
        files.write_atomically(str(link), b'new')
        assert link.is_symlink() and link.read_bytes() == b'new' and os.listdir(other) == ['trainer.states']


def test_links_that_lead_nowhere_are_an_error_and_stay(tmp_path):
    (tmp_path / 'a').symlink_to('b')
    (tmp_path / 'b').symlink_to('a')
    (tmp_path / 'dangling').symlink_to(tmp_path / 'missing' / 'trainer.states')
    with pytest.raises(OSError, match='Too many levels of symbolic links'):
        files.write_atomically(str(tmp_path / 'a'), b'new')
    with pytest.raises(FileNotFoundError, match='missing'):
        files.write_atomically(str(tmp_path / 'dangling'), b'new')
    assert sorted((entry.name, entry.is_symlink()) for entry in tmp_path.iterdir()) == [
        ('a', True), ('b', True), ('dangling', True)]


def test_pipes_and_devices_are_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / 'pipe'
    os.mkfifo(str(pipe))
    (tmp_path / 'link').symlink_to(pipe)
    reader = os.open(str(pipe), os.O_RDONLY | os.O_NONBLOCK)
    try:
        for path in (pipe, tmp_path / 'link'):
            files.write_atomically(str(path), b'new')
            assert os.read(reader, 10) == b'new'
    finally:
        os.close(reader)
    assert pipe.is_fifo() and (tmp_path / 'link').is_symlink() and len(list(tmp_path.iterdir())) == 2


def test_a_target_that_cannot_be_replaced_leaves_no_part(tmp_path):
    (tmp_path / 'directory').mkdir()
    with pytest.raises(OSError):
        files.write_atomically(str(tmp_path / 'directory'), b'new')
    with pytest.raises(FileNotFoundError):
        files.write_atomically(str(tmp_path / 'missing' / 'trainer.states'), b'new')
    assert os.listdir(str(tmp_path)) == ['directory']


# ------------------------------------------------------------------------------------------ directories, digests


@pytest.mark.parametrize('error, is_raised', [
    (errno.EIO, True), (errno.ENOSPC, True), (errno.EINVAL, False), (errno.ENOTSUP, False)])
def test_a_directory_need_not_be_flushable(tmp_path, monkeypatch, error, is_raised):
    fail_with(error, monkeypatch)
    with pytest.raises(OSError, match=os.strerror(error)) if is_raised else contextlib.nullcontext():
        files.sync_directory(str(tmp_path))


def test_digests():
    assert FileDigest().record() == {'bytes': 0, 'xxh3_128': '99aa06d3014798d86001c324468d497f'}  # XXH3-128, seed 0
    whole, pieces = FileDigest(), FileDigest()
    data = bytes(range(256)) * 5000
    whole.update(data)
    for start in range(0, len(data), 99999):
        pieces.update(memoryview(data)[start:start + 99999])
    assert whole.record() == pieces.record()
    assert whole.record()['bytes'] == len(data)


@pytest.mark.parametrize('value, expected', [
    ({'bytes': 1, 'xxh3_128': ''}, True), ({'bytes': 0, 'xxh3_128': ''}, True), ({'bytes': 0, 'blake2b': ''}, False),
    ({'bytes': 1, 'md5': ''}, False), ({'bytes': 1}, False), ({'xxh3_128': ''}, False),
    ({'bytes': 1, 'xxh3_128': '', 'blake2b': ''}, False), ({'bytes': -1, 'xxh3_128': ''}, False),
    ({'bytes': True, 'xxh3_128': ''}, False), ({'bytes': 1.0, 'xxh3_128': ''}, False),
    ({'bytes': 1, 'xxh3_128': None}, False), (None, False), ([], False), ('bytes', False)])
def test_records(value, expected):
    assert is_record(value) == expected
