"""Available memory, in folders that are written like those of the kernel, and in a cgroup."""
import subprocess
import sys

import pytest
from lab.chaos.faults import small_cgroup

from mxhybrid.kernels.library import counts
from mxhybrid.row_store import library

MACHINE = 'MemTotal:     100000 kB\nMemAvailable:  50000 kB\nSwapTotal:  8 kB\nSwapFree:  4 kB\n'
STATISTICS_1 = 'total_inactive_file 300\ntotal_active_file 50\ninactive_file 9999\n'
STATISTICS_2 = 'anon 9999\ninactive_file 300\nactive_file 50\n'
#: Grows until there is no more memory, in a container.
PROGRAM = """
import os, sys
import numpy as np
from mxhybrid.row_store.row_store import RowStore
with open(sys.argv[1], 'w') as processes:
    processes.write(str(os.getpid()))
store = RowStore(1000)
try:
    for first in range(0, 10 ** 9, 1000):
        store.assign(np.arange(first, first + 1000), np.ones((1000, 1000)))
except Exception as error:
    print(error)
"""


def available(root, files):
    for name, text in dict({'proc/meminfo': MACHINE}, **files).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    numbers = counts([0, 0])
    library.load().available_memory(str(root).encode(), numbers)
    return tuple(numbers)


def cgroup(path, version, limit, used, statistics):
    """Files of a cgroup."""
    names = ('memory.limit_in_bytes', 'memory.usage_in_bytes') if version == 1 else ('memory.max', 'memory.current')
    return {'%s/%s' % (path, name): str(text) + '\n' for name, text in zip(names + ('memory.stat',),
                                                                         (limit, used, statistics))}


@pytest.mark.parametrize('files, expected', [
    ({}, (50004 * 1024, 100008 * 1024)),
    # A limit counts without pages of files, which the system gives back.
    (dict(cgroup('sys/fs/cgroup/memory/jobs/one', 1, 9000, 5000, STATISTICS_1), **{
        'proc/self/cgroup': '4:cpu,memory:/jobs/one\n0::/\n'}), (4350, 9000)),
    (dict(cgroup('sys/fs/cgroup/a/b', 2, 9000, 5000, STATISTICS_2), **{'proc/self/cgroup': '0::/a/b\n'}),
     (4350, 9000)),
    # Processes hardly continue beyond memory.high.
    (dict(cgroup('sys/fs/cgroup/a/b', 2, 9000, 5000, STATISTICS_2), **{
        'proc/self/cgroup': '0::/a/b\n', 'sys/fs/cgroup/a/b/memory.high': '6000\n'}), (1350, 6000)),
    (dict(cgroup('sys/fs/cgroup/a/b', 2, 'max', 5000, ''), **{
        'proc/self/cgroup': '0::/a/b\n', 'sys/fs/cgroup/a/b/memory.high': '6000\n'}), (1000, 6000)),
    # The limit of a cgroup above, or of the topmost one, which a container sees instead of its own.
    (dict(cgroup('sys/fs/cgroup/a', 2, 8000, 7000, ''), **{'proc/self/cgroup': '0::/a/b\n'}), (1000, 8000)),
    (dict(cgroup('sys/fs/cgroup', 2, 8000, 7000, ''), **{'proc/self/cgroup': '0::/a/b\n'}), (1000, 8000)),
    (dict(cgroup('sys/fs/cgroup/memory', 1, 8000, 9000, ''), **{'proc/self/cgroup': '2:memory:/a\n'}), (0, 8000)),
    # No limit.
    (dict(cgroup('sys/fs/cgroup/a', 2, 'max', 7000, ''), **{'proc/self/cgroup': '0::/a\n'}),
     (50004 * 1024, 100008 * 1024)),
    (dict(cgroup('sys/fs/cgroup/memory', 1, 2 ** 63 - 4096, 7000, ''), **{'proc/self/cgroup': '2:memory:/\n'}),
     (50004 * 1024, 100008 * 1024)),
    (dict(cgroup('sys/fs/cgroup/a', 2, 9000, 5000, ''), **{'proc/self/cgroup': 'nonsense\n1:cpu:/a\n'}),
     (50004 * 1024, 100008 * 1024)),
])
def test_the_least_of_cgroups_and_machine(tmp_path, files, expected):
    assert available(tmp_path, files) == expected


def test_a_store_in_a_small_container_raises_an_error():
    limit_bytes = 150 << 20
    with small_cgroup(limit_bytes) as processes:
        if processes is None:
            pytest.skip('this process may not limit the memory of others')
        done = subprocess.run([sys.executable, '-c', PROGRAM, processes], timeout=60, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, universal_newlines=True)
    assert done.returncode == 0, done.stdout
    assert 'bytes are left of the %d of the container' % limit_bytes in done.stdout
    assert 'use more servers on other hosts, or keep rows in files (MXHYBRID_STORAGE)' in done.stdout
