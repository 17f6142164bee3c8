"""Free memory, by the kernel or the limit of a container, whichever is less; and the end of a process in words."""
import signal

import numpy as np
import pytest

from mxhybrid.base.errors import JobError
from mxhybrid.base.machine import available_bytes, cgroup_limit, describe_status, hint_at_status, remedy, total_bytes

pytestmark = pytest.mark.both_pythons


def root_with(root, group):
    """Write the kernel's numbers of a machine, and the files of a cgroup, below `root`."""
    meminfo = 'MemTotal:       2000 kB\nMemAvailable:   1000 kB\n'
    for name, text in [('proc/meminfo', meminfo), *(('sys/fs/cgroup/' + name, text) for name, text in group.items())]:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


@pytest.mark.parametrize('group, limit, total', [
    ({}, None, 2048000), ({'memory.max': 'max\n'}, None, 2048000), ({'memory.max': '5000\n'}, 5000, 5000),
    ({'memory/memory.limit_in_bytes': '9223372036854771712\n'}, None, 2048000)])
def test_the_limit_of_a_container(tmp_path, group, limit, total):
    root = root_with(tmp_path, group)
    assert (cgroup_limit(root), total_bytes(root)) == (limit, total)


def test_this_machine_has_some():
    assert available_bytes() > 1 << 20


@pytest.mark.parametrize('group, expected', [
    ({}, 1024000), ({'memory.max': 'max\n', 'memory.current': '5\n'}, 1024000),
    ({'memory.max': '5000\n', 'memory.current': '2000\n'}, 3000),
    ({'memory.max': '5000\n', 'memory.current': '6000\n'}, 0),
    ({'memory.max': 'max\n', 'memory.high': '5000\n', 'memory.current': '2000\n'}, 3000),
    ({'memory.max': '9000000\n', 'memory.current': '1\n'}, 1024000),
    ({'memory/memory.limit_in_bytes': '700\n', 'memory/memory.usage_in_bytes': '100\n'}, 600)])
def test_the_smaller_of_kernel_and_container(tmp_path, group, expected):
    assert available_bytes(root_with(tmp_path, group)) == expected


def test_only_a_lack_of_memory_has_a_remedy():
    with pytest.raises(MemoryError) as refused:
        np.empty(1 << 60, np.uint8)
    for error in (refused.value, MemoryError(), RuntimeError('std::bad_alloc')):
        assert 'ulimit -v (it is ' in remedy(error)
    assert remedy(JobError('a table that is too large')) == ''


@pytest.mark.parametrize('status, text', [
    (0, 'exit status 0'), (1, 'exit status 1'), (-9, 'signal 9 (SIGKILL)'), (-11, 'signal 11 (SIGSEGV)'),
    (-15, 'signal 15 (SIGTERM)')])
def test_statuses_in_words(status, text):
    assert describe_status(status) == text


def test_every_signal_can_be_described():
    # Real-time signals, 34 and up, have no names but for the first and the last.
    for number in range(1, signal.NSIG):
        assert describe_status(-number).startswith('signal %d' % number)


@pytest.mark.parametrize('status, hint', [(1, ''), (-11, ''), (-9, 'memory ran out: see dmesg')])
def test_a_killed_process_may_have_lacked_memory(status, hint):
    assert hint in hint_at_status(status) and bool(hint) == bool(hint_at_status(status))
