"""Servers hold the weights of embeddings, and workers pull their own rows: the same results, and fewer bytes."""
import os

import numpy as np
import pytest
from lab.jobs import run_job
from lab.launchers import PYTHON_PATH

from ...helpers import comparing
from . import BODIES

BODY = BODIES / 'on_demand_rows.py'

#: Routes of the table in the middle and at the end; all other cases keep their own rows.
KINDS = {
    **dict.fromkeys(['read', 'read-on-store', 'lowered', 'write', 'hand', 'other-read', 'other-refused', 'outer-later'],
                    ('on-demand rows', 'server gradients')),
    **dict.fromkeys(['outer', 'off', 'all-rows'], ('server gradients', 'server gradients'))}


@pytest.fixture(scope='module', params=[
    ('horovodrun', 2, 1, None, ''),
    ('launch.py', 3, 2, '5', 'evaluate-adam,evaluate-on-store,read,new,states,states-on-store,repartition')],
    ids=['horovodrun', 'launch.py'])
def job(request, expected, tmp_path_factory):
    """Several workers, how many, and their cases."""
    launcher, workers, servers, partitions, cases = request.param
    cases = cases.split(',') if cases else [name for name, found in expected.items() if isinstance(found, dict)]
    args = ['--directory', tmp_path_factory.mktemp('together'), '--cases', ','.join(cases)]
    args += ['--partitions', partitions] if partitions else []
    return run_job(BODY, launcher, workers=workers, servers=servers, args=args, timeout=150).ok(), workers, cases


def test_equals_one_process_also_when_read_in_the_middle(expected, job):
    result, workers, cases = job
    comparing.assert_cases({name: expected[name] for name in cases}, result, workers)


def test_parameters_change_over_and_back(job):
    result, workers, cases = job
    for rank in range(workers):
        for name in cases:
            middle, end = KINDS.get(name, ('on-demand rows', 'on-demand rows'))
            assert result.results[rank]['kind/%s/middle' % name] == middle, name
            assert result.results[rank]['kind/%s/end' % name] == end, name


def test_workers_without_common_rows_pull_an_nth(job):
    result, workers, _ = job
    row, apart = 4 * 4 + 12, [result.results[rank]['apart'] for rank in range(workers)]
    union = apart[0]['union']
    assert [sum(worker_result['own'][step] for worker_result in apart) for step in range(len(union))] == union
    for worker_result in apart:
        changed = worker_result['pulled'].index(0)  # all rows were there
        assert 0 < changed < 8
        assert worker_result['pulled'][:changed] == [rows * row for rows in union[:changed]]
        assert worker_result['pulled'][changed + 1:] == [rows * row for rows in worker_result['own'][changed + 1:]]


def test_rows_of_the_next_batch_are_asked_for_ahead(job):
    result, workers, _ = job
    for rank in range(workers):
        ahead, apart = result.results[rank]['ahead'], result.results[rank]['apart']
        assert apart['asked'] and all(apart['asked'])
        assert ahead['asked'] and not any(ahead['asked'])
        assert ahead['pulled'][-5:] == apart['pulled'][-5:]


@pytest.mark.parametrize('optimizer', ['adam', 'sgd-momentum'])
def test_updates_without_an_exchange_ignore_on_demand_rows(job, optimizer):
    result, workers, _ = job
    reports = [result.results[rank]['local-' + optimizer] for rank in range(workers)]
    for own, off in reports:
        assert (own['route'], own['end'], off['route']) == ('on-demand rows', 'server gradients', 'server gradients')
        for when in ('apart', 'together'):
            comparing.assert_equal(off[when], own[when], when)
    first, last = (found[1]['apart']['00'] for found in (reports[0], reports[-1]))
    assert np.abs(first - last).max() > 1e-3


ALONE = """
from lab.reports import report
from on_demand_rows import MIDDLE, Case, Worker, fit, update_alone
worker = Worker('hybrid', None)
case = Case(worker)
fit(worker, case.net, case.trainer, steps=MIDDLE)
report(worker.rank, kind=case.route.kind)
try:
    %s
except Exception as error:
    report(worker.rank, said=str(error))
    raise
"""


@pytest.mark.parametrize('others', ['step', 'wait'])
def test_an_update_on_one_worker_names_the_setting(tmp_path, others):
    body = tmp_path / 'body.py'
    body.write_text(ALONE % 'update_alone(case, 1) if worker.rank else %s' % {
        'step': 'fit(worker, case.net, case.trainer, steps=1)', 'wait': 'worker.barrier()'}[others])
    result = run_job(body, 'horovodrun', workers=2, timeout=60, env={
        'PYTHONPATH': os.pathsep.join([PYTHON_PATH, str(BODIES)])})
    result.failed('update() without allreduce_grads()')
    assert {found['kind'] for found in result.results.values()} == {'on-demand rows'}
    if others == 'step':
        for rank in range(2):
            assert 'MXHYBRID_ON_DEMAND_ROWS=0' in result.results[rank]['said']
    else:
        result.failed('different calls', 'barrier')
