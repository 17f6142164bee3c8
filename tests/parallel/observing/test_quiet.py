"""Log lines of a job: worker 0 writes each once, and MXNet's remarks on sparse updates appear only on request."""
import re

import pytest
from lab.jobs import run_job

from mxhybrid.native.log_filter import VARIABLE

from . import BODIES

#: The messages of ``bodies/quiet.py`` and their numbers: it trains two equal nets, with the same route table.
EXPECTED = [
    (r'prefetching: no array of a batch has the row ids of net_(weight|gradient)_weight: .*', 4),
    (r'routes:', 1),
    (r'net_(weight|gradient)_weight travels by (servers|allreduce): .*', 4),
    (r'checkpoint of step 11: .*', 1),
    (r'the checkpoint, not the script, decides: optimizer\.lr 0\.01 \(was 0\.02\); .*', 1),
    (r'resumed from step 11: .*', 1),
]
ROUTE_TABLE = (r'(mxhybrid: \d workers on 1 host, 1 server; averages over 3 steps of rank 0; '
               r'rows and dense sums by the lane|parameter +shape .*|-+  -.*|net_.*)')

pytestmark = pytest.mark.timeout(150)


def run(launcher, workers, directory, **env):
    """Return the lines of a job, without horovodrun's marks."""
    output = run_job(BODIES / 'quiet.py', launcher, workers=workers, args=[directory], env=env, timeout=120).ok().output
    return [re.sub(r'^\[\d\]<std(out|err)>:', '', line) for line in output.splitlines()]


@pytest.mark.parametrize('launcher, workers', [('horovodrun', 3), ('launch.py', 2)])
def test_worker_0_says_everything_once(launcher, workers, tmp_path):
    lines = run(launcher, workers, tmp_path)
    said = [line.replace('[mxhybrid rank 0] ', '', 1) for line in lines if line.startswith('[mxhybrid rank 0] ')]
    table = [line for line in lines if re.fullmatch(ROUTE_TABLE, line)]
    assert len(said) + len(table) == len(lines), '\n'.join(lines)
    assert len(table) == 7
    found = [sum(bool(re.fullmatch(pattern, line)) for line in said) for pattern, _ in EXPECTED]
    assert found == [count for _, count in EXPECTED], '\n'.join(lines)
    assert sum(found) == len(said), '\n'.join(lines)


def test_remarks_of_mxnet_can_be_heard(tmp_path):
    lines = '\n'.join(run('horovodrun', 2, tmp_path, **{VARIABLE: '1'}))
    assert 'lazy_update = True' in lines and 'fallback detected' in lines
