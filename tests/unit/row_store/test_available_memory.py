"""Available memory, in folders that are written like those of the kernel, and in a cgroup."""
import pytest
from lab.chaos.faults import small_cgroup

from mxhybrid.kernels.library import counts
from mxhybrid.row_store import library

from ...helpers.programs import run_program

#: The available memory and all memory of a machine, in bytes, and its file.
OF_MACHINE = (50004 * 1024, 100008 * 1024)
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


def cgroup(path, of_process, limit, used, statistics='', high=None):
    """Return the files of a cgroup, whose version is 1 in the folder `memory`, and of the cgroups of the process."""
    names = (['memory.limit_in_bytes', 'memory.usage_in_bytes', 'memory.stat'] if path.startswith('memory') else
             ['memory.max', 'memory.current', 'memory.stat'] + ['memory.high'] * (high is not None))
    files = {'sys/fs/cgroup/%s/%s' % (path, name): '%s\n' % text
             for name, text in zip(names, (limit, used, statistics, high))}
    return dict(files, **{'proc/self/cgroup': of_process + '\n'})


@pytest.mark.parametrize('files, expected', [
    ({}, OF_MACHINE),
    # A limit counts without pages of files, which the system gives back.
    (cgroup('memory/jobs/one', '4:cpu,memory:/jobs/one\n0::/', 9000, 5000, STATISTICS_1), (4350, 9000)),
    (cgroup('a/b', '0::/a/b', 9000, 5000, STATISTICS_2), (4350, 9000)),
    # Processes hardly continue beyond memory.high.
    (cgroup('a/b', '0::/a/b', 9000, 5000, STATISTICS_2, high=6000), (1350, 6000)),
    (cgroup('a/b', '0::/a/b', 'max', 5000, high=6000), (1000, 6000)),
    # The limit of a cgroup above, or of the topmost one, which a container sees instead of its own.
    (cgroup('a', '0::/a/b', 8000, 7000), (1000, 8000)),
    (cgroup('', '0::/a/b', 8000, 7000), (1000, 8000)),
    (cgroup('memory', '2:memory:/a', 8000, 9000), (0, 8000)),
    # No limit.
    (cgroup('a', '0::/a', 'max', 7000), OF_MACHINE),
    (cgroup('memory', '2:memory:/', 2 ** 63 - 4096, 7000), OF_MACHINE),
    (cgroup('a', 'nonsense\n1:cpu:/a', 9000, 5000), OF_MACHINE),
])
def test_the_least_of_cgroups_and_machine(tmp_path, files, expected):
    assert available(tmp_path, files) == expected


def test_a_store_in_a_small_container_raises_an_error():
    limit_bytes = 150 << 20
    with small_cgroup(limit_bytes) as processes:
        if processes is None:
            pytest.skip('this process may not limit the memory of others')
        output = run_program(PROGRAM, processes).stdout
    assert 'bytes are left of the %d of the container' % limit_bytes in output
    assert 'use more servers on other hosts, or keep rows in files (MXHYBRID_STORAGE)' in output
