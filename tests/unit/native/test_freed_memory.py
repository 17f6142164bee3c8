"""Memory of freed arrays stays with the process."""
import os
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import numpy as np
from mxhybrid.native.freed_memory import keep_freed_memory
is_kept = keep_freed_memory()
def step():
    arrays = [np.ones(3 << 18, 'f4') for _ in range(6)]  # 3 MB each
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(is_kept, faults < 20 * 6)  # less than one for each array, whatever the size of pages
"""


@pytest.mark.parametrize('settings, expected', [({}, 'True True'), ({'MALLOC_TRIM_THRESHOLD_': '100000'}, 'False')],
                         ids=str)
def test_arrays_take_the_memory_of_freed_ones(settings, expected):
    try:
        os.confstr('CS_GNU_LIBC_VERSION')
    except (ValueError, OSError):
        pytest.skip('the C library is not glibc')
    names = ('MALLOC_TRIM_THRESHOLD_', 'MALLOC_MMAP_THRESHOLD_', 'GLIBC_TUNABLES')
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run([sys.executable, '-c', PROGRAM], env=dict(environment, **settings), timeout=60,
                          stdout=subprocess.PIPE, universal_newlines=True, check=True)
    assert done.stdout.startswith(expected)
