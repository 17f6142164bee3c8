"""Work on a copy of memory: its result arrives whatever happens to the process."""
import builtins
import json
import os
import signal
import time

import pytest

from mxhybrid.base.memory_copy import work_on_copy


def result_of(work, path):
    """Return the result of the work of a copy, within 30 s."""
    work_on_copy(work, str(path))
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, 'no result'
        time.sleep(0.01)
    return json.loads(path.read_text() or 'null')


def test_a_stopped_process_goes_on(tmp_path):
    def work():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGSTOP)
        return [1]
    assert result_of(work, tmp_path / 'result') == [1]


@pytest.mark.parametrize('has_room', [True, False])
def test_a_disk_without_free_inodes(tmp_path, monkeypatch, has_room):
    """An empty result arrives if the disk has room for no byte, either; neither needs a new file."""
    make = builtins.open

    def work():
        def open_old(path, *arguments, **options):
            if not has_room or not os.path.exists(path):
                raise OSError(28, 'No space left on device')
            return make(path, *arguments, **options)
        monkeypatch.setattr(builtins, 'open', open_old)
        return [2]
    assert result_of(work, tmp_path / 'result') == ([2] if has_room else None)


def test_a_disk_without_free_inodes_at_the_start(tmp_path):
    with pytest.raises(OSError):
        work_on_copy(lambda: 1, str(tmp_path / 'absent' / 'result'))
