"""Memory that a limit of the process refuses: the error names the limit."""
import contextlib
import re
import resource
import subprocess
import sys

import numpy as np
import pytest

from mxhybrid.base.errors import JobError
from mxhybrid.lane import library

from .hosts import SGD, hosts, lib

pytestmark = pytest.mark.both_pythons


@contextlib.contextmanager
def limited(which, value):
    """Lower a limit of the process inside the block."""
    before = resource.getrlimit(which)
    resource.setrlimit(which, (value, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


def address_space_bytes():
    """Return the bytes of address space that this process uses."""
    with open('/proc/self/statm') as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()


def add_table(job, rows=1 << 20, width=1 << 10):
    return lib.worker_add_table(job.workers[0][2], 1, rows, width, 1, 0, 0, 1, library.numbers([0]), 0)


@pytest.mark.parametrize('limit, value, message', [
    ('FSIZE', lambda: 1 << 16,
     r'make shared memory of \d{10} bytes: File too large; .* ulimit -f \(it is %d now, in bytes\)'),
    ('AS', lambda: address_space_bytes() + (1 << 30),
     r'map shared memory of \d{10} bytes: Cannot allocate memory; .* ulimit -v \(it is %d now, in bytes\)'),
    ('NOFILE', lambda: 1, r'make shared memory of \d{10} bytes: Too many open files; .* ulimit -n \(it is %d now\)')],
    ids=['file size', 'address space', 'open files'])
def test_the_limit_that_a_table_exceeds_is_named(limit, value, message):
    value = value()
    with hosts([1], [1]) as job, limited(getattr(resource, 'RLIMIT_' + limit), value):
        with pytest.raises(JobError, match='cannot ' + message % value):
            add_table(job)
        if limit == 'AS':
            add_table(job, 10, 10)  # the refused table left no memory


def test_allreduce_without_memory_is_not_opened():
    with hosts([1], [1]) as job:
        buffer = job.allreduce(0, 'float32', 10)[0]
        count = 1 << 28
        input_memory = lib.worker_open_allreduce(job.workers[0][2], 1, 1, count)
        with limited(resource.RLIMIT_FSIZE, 1 << 16), pytest.raises(JobError, match='ulimit -f'):
            lib.agent_open_allreduce(job.agents[0], 1, 0, 1, count, 0, None, 0, input_memory)
        assert buffer.run(2).sum() == 20  # the agent looks at all allreduces


def output_of(function):
    """Run a function of this module in a process of its own, where no freed memory is in reserve; return its output."""
    program = f'import {__name__} as tests; tests.{function.__name__}()'
    return subprocess.run([sys.executable, '-c', program], stdout=subprocess.PIPE, timeout=50, check=True,
                          universal_newlines=True).stdout


def post_without_memory():
    """Post requests that the worker has no memory for, more than it may have at a time, and then others."""
    rows = 1 << 25  # 128 MB: malloc may have 64 MB in reserve
    ids = np.arange(rows)
    with hosts([1], [1]) as job:
        job.table(0, rows, 1, [0])
        for _ in range(9):
            with limited(resource.RLIMIT_AS, address_space_bytes() + (8 << 20)), contextlib.suppress(JobError):
                job.post(0, 0, ids)
                print('posted')
        for _ in range(8):
            print(job.post(0, 0, ids[:10]))


def test_requests_that_fail_leave_room_for_others():
    assert output_of(post_without_memory).split() == list('01234567')


def push_without_memory():
    """Push rows that the agent has no memory for; print the errors of the agents."""
    # 160 MB for four workers: malloc may have 64 MB in reserve, and threads need memory for their own variables.
    rows, width = 20000, 500
    ids, values = np.arange(rows), np.ones((rows, width), np.float32)
    with hosts([4, 1], [1, 1], may_fail=True) as job:
        job.table(0, rows, width, [0])
        job.rule(0, SGD, lr=1.0)
        with limited(resource.RLIMIT_AS, address_space_bytes() + (32 << 20)):
            for worker in range(5):
                assert job.push(worker, 0, ids, values)
            assert job.pull(0, 0, [0], limit=1000) is None
        print(*job.failures, sep='\n')


def test_agent_without_memory_for_rows_reports_the_size():
    assert re.search(r'^cannot get memory of \d{8,9} bytes: Cannot allocate memory; .* ulimit -v',
                     output_of(push_without_memory), re.M)
