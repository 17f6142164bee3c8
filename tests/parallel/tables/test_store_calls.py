"""Calls of the store itself, by every transport: values are those of MXNet's own store, or of NumPy.

A job runs all bodies that its launcher and its transport suit.  If a worker cannot use the lane, rows travel by ps-lite
on all workers, or the job is refused.
"""
import os
import re

import numpy as np
import pytest
from lab.jobs import run_job

from mxhybrid.routes.dense_buckets import MOST_SELECTIONS

from ...helpers import comparing
from ...helpers.joint_jobs import body, run_together
from ...helpers.turns import slow
from . import BODIES

DIRECT, PUSHES, REPEATED, SUMS = (BODIES / (name + '.py')
                                  for name in ('direct', 'random_pushes', 'repeated_ids', 'sums'))

#: Launcher, settings and bodies of each job. They have three workers and two servers.
JOBS = {
    'horovodrun': ('horovodrun', {}, {
        'random pushes': body(PUSHES), 'direct': body(DIRECT), 'repeated ids': body(REPEATED), 'sums': body(SUMS, 3),
        'killed': body(SUMS, 3, 1)}),
    'horovodrun without the lane': (
        'horovodrun', {'MXHYBRID_ROW_TRANSPORT': 'ps-lite', 'MXHYBRID_DENSE_TRANSPORT': 'horovod'}, {
            'random pushes': body(PUSHES), 'sums': body(SUMS, 3)}),
    'launch.py': ('launch.py', {'MXHYBRID_ROW_TRANSPORT': 'lane', 'MXHYBRID_DENSE_TRANSPORT': 'lane'}, {
        'random pushes': body(PUSHES), 'direct': body(DIRECT, '--strings'), 'sums': body(SUMS, 3)}),
    # ps-lite talks by Unix sockets where it can be told to.
    'launch.py without the lane': ('launch.py', {'MXHYBRID_ROW_TRANSPORT': 'ps-lite', 'DMLC_LOCAL': '1'}, {
        'random pushes': body(PUSHES), 'repeated ids': body(REPEATED)}),
    'float16': ('horovodrun', {'MXHYBRID_WIRE_DTYPE': 'float16'}, {'repeated ids': body(REPEATED)})}


@pytest.fixture(scope='module')
def results_of():
    """Run each job once; gives the results of a job by body, or the error by which it failed."""
    outcomes = {}

    def run(job):
        if job not in outcomes:
            try:
                outcomes[job] = run_bodies(*JOBS[job])
            except Exception as error:
                outcomes[job] = error
        if isinstance(outcomes[job], Exception):
            raise outcomes[job]
        return outcomes[job]
    return run


def run_bodies(launcher, settings, bodies):
    """Run the bodies of a job; return their results."""
    ends_badly = ['ends, because worker 1 '] if 'killed' in bodies else []
    results = run_together(bodies, launcher, workers=3, servers=2, env=settings, timeout=240, ends_badly=ends_badly)
    for name, result in results.items():
        assert name == 'killed' or sorted(result.results) == [0, 1, 2]
    return results


@pytest.fixture(scope='module')
def alone():
    """The results of one process: MXNet's store with the arrays of several workers, mxhybrid's with those of one."""
    return run_together({'3': body(DIRECT, '--alone', 3), '3 --strings': body(DIRECT, '--alone', 3, '--strings'),
                         '1': body(DIRECT, '--alone', 1), 'hybrid': body(DIRECT)}, 'none', timeout=100)


@pytest.mark.parametrize('job, reference', [('horovodrun', '3'), ('launch.py', '3 --strings'), (None, '1')])
def test_calls_give_what_mxnets_own_store_gives(alone, results_of, job, reference):
    """Use int and str keys, and lists of keys."""
    workers = 3 if job else 1
    result = results_of(job)['direct'] if job else alone['hybrid']
    for rank in range(workers):
        comparing.assert_equal(alone[reference].results[0]['outcomes'], result.results[rank]['outcomes'],
                               'rank %d' % rank)
        assert result.results[rank]['kind'] == ('hybrid', rank, workers, True)


@pytest.mark.parametrize('job, link, clients', [
    ('horovodrun', 'Lane', [True, False, False]), ('horovodrun without the lane', 'PsLiteLink', [True] * 3),
    ('launch.py', 'Lane', [True] * 3), ('launch.py without the lane', 'PsLiteLink', [True] * 3)])
def test_random_pushes_and_pulls_equal_a_model(results_of, job, link, clients):
    """Use both transports; check also which workers are clients of the servers."""
    result = results_of(job)['random pushes']
    workers = [result.results[rank] for rank in range(3)]
    assert [counts['link'] for counts in workers] == [link] * 3
    assert [counts['client'] for counts in workers] == clients
    assert all(counts['pulled'] > 0 for counts in workers)
    # Worker 0 pulls once a step; rows that were asked for early come otherwise.
    assert all((counts['delivered'] > 5) == (counts['few'] > 5) == (link == 'Lane') for counts in workers)
    for counts in workers:
        assert np.abs(counts['tables'][0]).sum() > 0
        assert counts['descriptors'] < 200
        for mine, theirs in zip(counts['tables'], workers[0]['tables']):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize('job, trainer', [
    ('horovodrun', 'on-demand rows'), ('launch.py without the lane', 'on-demand rows'),
    ('float16', 'server gradients')])
def test_rows_of_one_id_are_summed(results_of, job, trainer):
    """Push arrays that have a row id more than once, by all routes."""
    for values in results_of(job)['repeated ids'].results.values():
        assert values['kinds'] == {'servers': ['server weights', 'server gradients'],
                                   'allreduce': ['replicated', 'row allreduce']}
        assert values['trainer'] == trainer


@pytest.mark.parametrize('job, by_lane', [
    ('horovodrun', True), ('horovodrun without the lane', False), ('launch.py', True)])
def test_dense_sums_equal_numpys(results_of, job, by_lane):
    """Check also gathers, copies of worker 0's arrays, and that all workers have the same bits."""
    result = results_of(job)['sums']
    for rank in range(3):
        np.testing.assert_array_equal(result.results[rank]['fractions'], result.results[0]['fractions'])
        assert result.results[rank]['by_lane'] == by_lane
        assert result.results[rank]['selections'] == (MOST_SELECTIONS if by_lane else 0)


def test_a_worker_that_dies_among_sums_is_named(results_of):
    output = results_of('horovodrun')['killed'].output
    causes = [line.partition('ends, because ')[2] for line in output.splitlines() if 'ends, because' in line]
    assert causes
    assert all(cause.startswith('worker 1 ') for cause in causes), output


TRANSPORTS = BODIES / 'transports.py'
ELSEWHERE = 'a host has workers, but no server that they share memory with'
OTHER_USER = (r'worker \d runs as user %d, and a server of its host as user %d, and only processes of one user share '
              'memory' % (os.getuid() + 1, os.getuid()))


@pytest.mark.parametrize('launcher, arguments, why', [
    ('horovodrun', ['--without', 1], 'worker 1 cannot: the compiled part of mxhybrid is missing: install g\\+\\+'),
    ('horovodrun', ['--elsewhere'], ELSEWHERE), slow('launch.py', ['--elsewhere'], ELSEWHERE),
    ('horovodrun', ['--other-user'], OTHER_USER), slow('launch.py', ['--other-user'], OTHER_USER)])
def test_all_workers_do_without_a_missing_lane(launcher, arguments, why):
    result = run_job(TRANSPORTS, launcher, workers=2, args=arguments).ok()
    assert [result.results[rank]['link'] for rank in range(2)] == ['PsLiteLink', 'PsLiteLink']
    assert result.output.count('rows travel by ps-lite') == 1
    assert re.search('rows travel by ps-lite.*: ' + why, result.output), result.tail()


@pytest.mark.parametrize('setting', ['ROW_TRANSPORT', 'DENSE_TRANSPORT'])
def test_an_impossible_lane_is_refused_on_every_worker(setting):
    why = 'worker 1 cannot: the compiled part of mxhybrid is missing'
    job = run_job(TRANSPORTS, 'horovodrun', workers=2, args=['--without', 1], env={'MXHYBRID_' + setting: 'lane'})
    job.failed("SettingError: MXHYBRID_%s='lane', but %s" % (setting, why))
