"""Free memory, by the kernel or the limit of a container, whichever is less; and the end of a process in words."""
import signal
import subprocess

import numpy as np
import pytest

from mxhybrid.base.errors import JobError
from mxhybrid.base.machine import available_bytes, cgroup_limit, describe_status, hint_at_status, remedy, total_bytes

pytestmark = pytest.mark.both_pythons


def files(root, **contents):
    """Write files below `root`, ``__`` standing for a slash."""
    for name, text in contents.items():
        path = root / name.replace('__', '/')
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


MEMINFO = 'MemTotal:       2000 kB\nMemAvailable:   1000 kB\n'


@pytest.mark.parametrize('contents, expected', [
    ({}, None), ({'sys__fs__cgroup__memory.max': 'max\n'}, None), ({'sys__fs__cgroup__memory.max': '5000\n'}, 5000),
    ({'sys__fs__cgroup__memory__memory.limit_in_bytes': '9223372036854771712\n'}, None)])
def test_the_limit_of_a_cgroup(tmp_path, contents, expected):
    assert cgroup_limit(files(tmp_path, **contents)) == expected


def test_this_machine_has_some():
    assert available_bytes() > 1 << 20


@pytest.mark.parametrize('contents, expected', [
    ({}, 1024000),
    ({'sys__fs__cgroup__memory.max': 'max\n', 'sys__fs__cgroup__memory.current': '5\n'}, 1024000),
    ({'sys__fs__cgroup__memory.max': '5000\n', 'sys__fs__cgroup__memory.current': '2000\n'}, 3000),
    ({'sys__fs__cgroup__memory.max': '5000\n', 'sys__fs__cgroup__memory.current': '6000\n'}, 0),
    ({'sys__fs__cgroup__memory.max': 'max\n', 'sys__fs__cgroup__memory.high': '5000\n',
      'sys__fs__cgroup__memory.current': '2000\n'}, 3000),
    ({'sys__fs__cgroup__memory.max': '9000000\n', 'sys__fs__cgroup__memory.current': '1\n'}, 1024000),
    ({'sys__fs__cgroup__memory__memory.limit_in_bytes': '700\n',
      'sys__fs__cgroup__memory__memory.usage_in_bytes': '100\n'}, 600)])
def test_the_smaller_of_kernel_and_container(tmp_path, contents, expected):
    assert available_bytes(files(tmp_path, proc__meminfo=MEMINFO, **contents)) == expected


@pytest.mark.parametrize('contents, expected', [
    ({}, 2048000), ({'sys__fs__cgroup__memory.max': 'max\n'}, 2048000),
    ({'sys__fs__cgroup__memory.max': '5000\n'}, 5000),
    ({'sys__fs__cgroup__memory__memory.limit_in_bytes': '9223372036854771712\n'}, 2048000)])
def test_the_memory_of_machine_or_container(tmp_path, contents, expected):
    assert total_bytes(files(tmp_path, proc__meminfo=MEMINFO, **contents)) == expected


def test_only_a_lack_of_memory_has_a_remedy():
    with pytest.raises(MemoryError) as refused:
        np.empty(1 << 60, np.uint8)
    for error in (refused.value, MemoryError(), RuntimeError('std::bad_alloc')):
        assert 'ulimit -v (it is ' in remedy(error)
    assert remedy(JobError('a table that is too large')) == ''


@pytest.mark.parametrize('status, text', [
    (0, 'exit status 0'), (1, 'exit status 1'), (-9, 'signal 9 (SIGKILL)'), (-11, 'signal 11 (SIGSEGV)')])
def test_statuses_in_words(status, text):
    assert describe_status(status) == text


def test_every_signal_can_be_described():
    # Real-time signals, 34 and up, have no names but for the first and the last.
    for number in range(1, signal.NSIG):
        assert describe_status(-number).startswith('signal %d' % number)


def test_the_status_of_a_killed_process():
    process = subprocess.Popen(['sleep', '60'])
    process.terminate()
    assert describe_status(process.wait()) == 'signal 15 (SIGTERM)'


@pytest.mark.parametrize('status, hint', [(1, ''), (-11, ''), (-9, 'memory ran out: see dmesg')])
def test_a_killed_process_may_have_lacked_memory(status, hint):
    assert hint in hint_at_status(status) and bool(hint) == bool(hint_at_status(status))
