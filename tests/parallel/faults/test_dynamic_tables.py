"""Jobs with dynamic tables in files, of which a server is killed or whose disk is full: they end by name, the
checkpoint before is intact, and nothing is left in the directories.
"""
import os
import re
import resource
import time
from pathlib import Path

import pytest
from lab.chaos.faults import hit, small_cgroup, small_disk, stop_while_saving
from lab.jobs import run_job, start_job

import mxhybrid

from ...helpers.turns import by_turns
from . import BODIES

BODY = BODIES / 'dynamic_tables.py'
#: Seconds in which a job must be over after a server of it was killed.
DEADLINE_S = 30
#: Bytes that a server in a container may take.
CONTAINER_BYTES = 64 << 20
#: Bytes of a file on the full disk.
FULL_BYTES = 1 << 20


@pytest.fixture
def folders(tmp_path):
    """The directories of rows in files, and of checkpoints."""
    for name in ('rows', 'saved'):
        (tmp_path / name).mkdir()
    return tmp_path / 'rows', tmp_path / 'saved'


def started(what, launcher, rows, saved):
    return start_job(BODY, launcher, workers=2, servers=2, args=[what, saved], env={'MXHYBRID_STORAGE': rows})


def complete(saved):
    """Return the names of the checkpoints that are complete."""
    return {path.parent.name for path in saved.glob('*/manifest.json')}


def check_end(result, launcher, rows, saved, steps):
    """Check that each worker names the server, that the newest checkpoint is one of `steps`, and that nothing is left.

    launch.py names the server itself, and may end the other processes before they have written anything.
    """
    if launcher == 'launch.py':
        assert re.search('launch.py: server .* failed first', result.output), result.tail()
    else:
        for rank in range(2):
            assert re.search(r'worker %d \(host .*ends, because .*server' % rank, result.output), result.tail()
    assert not list(rows.iterdir())
    with mxhybrid.checkpoint.open(str(saved), verify=True) as tables:
        assert tables.step in steps and len(tables['users']) > 0
    assert not [path for path in saved.iterdir() if path.name.endswith('.part')]


def check_cause(result, cause):
    """Check that a server writes the cause in full, and that each worker names the server and the first words."""
    assert re.search(r'\[mxhybrid server\] the lane failed: .*' + cause, result.output), result.tail()
    for rank in range(2):
        assert re.search(r'worker %d \(host .*ends, because a parameter server .* failed: .*net_(users|words)_weight: '
                         r'(storage|cannot get memory)' % rank, result.output), result.tail()


@pytest.mark.parametrize('launcher, which', by_turns(['horovodrun', 'launch.py'], [-1]))
def test_a_server_is_killed_while_it_writes_a_delta(folders, launcher, which):
    rows, saved = folders
    with started('delta', launcher, rows, saved) as job:
        job.wait_for_output('step 2', timeout=90)
        server, deadline = job.processes('server')[which].pid, time.monotonic() + 60
        files = stop_while_saving(server, saved, lambda: job.poll() is not None or time.monotonic() > deadline)
        before = complete(saved)
        job.kill(server)
        result = job.wait(timeout=DEADLINE_S).failed()
    # The checkpoint that was being written is gone.
    assert files and complete(saved) == before
    check_end(result, launcher, rows, saved, range(2, 1000))


@pytest.mark.parametrize('launcher, which', by_turns(['horovodrun', 'launch.py'], [0]))
def test_a_server_is_killed_while_tables_grow_and_expire(folders, launcher, which):
    rows, saved = folders
    with started('churn', launcher, rows, saved) as job:
        job.wait_for_output('step 9', timeout=90)
        job.kill(job.processes('server')[which].pid)
        result = job.wait(timeout=DEADLINE_S).failed()
    check_end(result, launcher, rows, saved, [2])


def test_files_that_cannot_grow_end_the_job(folders):
    """The servers may write files of 1 MB only, as on a disk that is full."""
    rows, saved = folders
    with started('full', 'horovodrun', rows, saved) as job:
        job.wait_for_output('step 1', timeout=90)
        for server in job.processes('server'):
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (FULL_BYTES, FULL_BYTES))
        result = job.wait(timeout=90).failed()
    check_cause(result, r'net_users_weight: storage: .*%s cannot grow from \d+ to \d+ bytes: File too large'
                % re.escape(str(rows)))
    assert not list(rows.iterdir())


def test_a_lack_of_memory_ends_the_job(folders):
    with started('full', 'horovodrun', 'memory', folders[1]) as job:
        job.wait_for_output('step 1', timeout=90)
        hit(job.processes('server')[0].pid, 'memory')
        result = job.wait(timeout=90).failed()
    check_cause(result, 'net_(users|words)_weight: cannot get memory .*ulimit -v')


def test_a_small_container_ends_the_job(folders):
    """The server ends the job before the system kills it."""
    with small_cgroup(CONTAINER_BYTES) as processes:
        if processes is None:
            pytest.skip('this process may not limit the memory of others')
        with started('full', 'horovodrun', 'memory', folders[1]) as job:
            job.wait_for_output('step 1', timeout=90)
            Path(processes).write_text(str(job.processes('server')[0].pid))
            result = job.wait(timeout=90).failed()
    check_cause(result, r'net_(users|words)_weight: cannot get memory for rows of \d+ bytes: \d+ bytes are left of the '
                        r'%d of the container .*MXHYBRID_STORAGE' % CONTAINER_BYTES)


@pytest.mark.skipif(os.geteuid() != 0, reason='only root mounts file systems')
@pytest.mark.parametrize('settings', [{}, {'MXHYBRID_STORAGE_MEMORY': '2M'}], ids=['mapped', 'cached'])
def test_a_full_disk_ends_the_job_on_every_rank(folders, settings):
    rows, saved = folders
    with small_disk(str(rows), '8m'):
        result = run_job(BODY, 'horovodrun', workers=2, servers=2, args=['full', saved], timeout=90,
                         env=dict(settings, MXHYBRID_STORAGE=rows)).failed()
        assert not list(rows.iterdir())
    # Both tables grow on this disk.
    check_cause(result, r'net_(users|words)_weight: storage: .* cannot grow from \d+ to \d+ bytes: '
                        'No space left on device')


@pytest.mark.skipif(os.geteuid() != 0, reason='only root mounts file systems')
def test_a_full_disk_refuses_the_checkpoint_on_every_rank(folders):
    """The training goes on, and the checkpoints before stay."""
    saved = folders[1]
    with small_disk(str(saved), '4m'):
        result = run_job(BODY, 'horovodrun', workers=2, servers=2, args=['refused', saved], timeout=90).ok()
        with mxhybrid.checkpoint.open(str(saved), verify=True) as tables:
            assert tables.step >= 2 and len(tables['users']) > 0
        assert {path.name for path in saved.iterdir()} == complete(saved)
    for rank in range(2):
        assert re.search(r'worker %d: checkpoint.save failed on worker 0: .*cannot write rows of a dynamic table into '
                         r'.*: No space left on device. Free space there' % rank, result.output), result.tail()
