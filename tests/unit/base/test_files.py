"""Files: directories whose names are flushed to the disk, and digests with their records."""
import errno
import os

import pytest

from mxhybrid.base.file_digest import FileDigest, is_record
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


#: The known digest of no bytes: XXH3-128 with seed 0.
EMPTY = '99aa06d3014798d86001c324468d497f'


@pytest.mark.both_pythons
def test_digests():
    assert FileDigest().record() == {'bytes': 0, 'xxh3_128': EMPTY}
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
