"""Training with kvstore='hybrid' equals MXNet in one process on the joined batch, for every case of ``train.py``, and
for workers whose first values differ, which begin with worker 0's.
"""
import pytest
from lab.jobs import run_job

from ...helpers import comparing
from ...helpers.joint_jobs import body, run_together
from ...helpers.turns import slow
from . import BODIES

BODY = BODIES / 'train.py'


@pytest.mark.parametrize('launcher, workers, servers, partitions, transport', [
    ('horovodrun', 2, 1, None, 'lane'), ('horovodrun', 3, 2, 5, 'lane'), slow('horovodrun', 4, 1, 3, 'lane'),
    slow('launch.py', 2, 2, None, 'lane'), ('launch.py', 3, 1, 2, 'lane'), slow('launch.py', 4, 3, 7, 'lane'),
    ('horovodrun', 2, 2, 3, 'ps-lite'), slow('launch.py', 4, 3, 7, 'ps-lite')])
def test_equals_one_process(expected, launcher, workers, servers, partitions, transport):
    args = [] if partitions is None else ['--partitions', str(partitions)]
    result = run_job(BODY, launcher, workers=workers, servers=servers, args=args, timeout=240,
                     env={'MXHYBRID_ROW_TRANSPORT': transport}).ok()
    comparing.assert_cases(expected, result, workers)
    assert sorted(result.results[rank]['seen'] for rank in range(workers)) == [(r, workers) for r in range(workers)]


@pytest.mark.parametrize('launcher, workers, kinds, optimizers', [
    ('horovodrun', 2, ('weight', 'gradient', 'stale', 'frozen'), ''),
    ('launch.py', 3, ('weight', 'gradient'), 'sgd adam adagrad')])
def test_tables_forced_to_allreduce_equal_one_process(expected, launcher, workers, kinds, optimizers):
    cases = [case for case in expected if case.split('-')[0] in kinds
             and (not optimizers or case.split('-')[1] in optimizers.split())]
    cases += ['shared', 'trainers', 'widths', 'contexts-gradient', 'changing-nag', 'refused-nag']
    result = run_job(BODY, launcher, workers=workers, args=['--cases', ','.join(cases)],
                     env={'MXHYBRID_ROUTES': 'allreduce'}, timeout=240).ok()
    comparing.assert_cases({case: expected[case] for case in cases}, result, workers)
    assert 'replicated' in result.output and 'row allreduce' in result.output
    assert 'server ' not in result.output.replace('1 server;', '')


# Pinned memory stands where that of a GPU would: it is copied to be summed, and batches are elsewhere than weights.
PINNED_CASES = ['dense', 'dense-on-store', 'contexts-dense', 'contexts-gradient', 'shared', 'half', 'trainers',
                'gradient-on-store', 'gradient-sgd-momentum', 'weight-adam']
PINNED = ['--device', 'cpu_pinned', '--cases', ','.join(PINNED_CASES)]
PARTITIONED_CASES = ['widths', 'weight-sgd-momentum', 'weight-adam', 'weight-ftrl', 'weight-rmsprop', 'weight-nag-wd',
                     'gradient-adagrad', 'trainers']


@pytest.fixture(scope='module')
def two_servers():
    """Two workers that sum by the lane, with two servers."""
    partitioned = ['--cases', ','.join(PARTITIONED_CASES), '--partitions']
    return run_together({'pinned': body(BODY, *PINNED), '1': body(BODY, *partitioned, 1),
                         '40': body(BODY, *partitioned, 40)}, 'horovodrun', workers=2, servers=2,
                        env={'MXHYBRID_DENSE_TRANSPORT': 'lane'}, timeout=240)


@pytest.mark.parametrize('dense', ['horovod', 'lane'])
def test_arrays_that_horovod_does_not_reach_equal_one_process(request, expected, dense):
    if dense == 'lane':
        result = request.getfixturevalue('two_servers')['pinned']
    else:
        result = run_job(BODY, 'horovodrun', workers=2, args=PINNED, env={'MXHYBRID_DENSE_TRANSPORT': dense},
                         timeout=120).ok()
    comparing.assert_cases({case: expected[case] for case in PINNED_CASES}, result, 2)


def test_partition_count_changes_no_bit(two_servers):
    for case in PARTITIONED_CASES:
        comparing.assert_same_bits(two_servers['1'].results[0][case], two_servers['40'].results[0][case], case)


def test_one_process_without_launcher(expected):
    result = run_job(BODY, 'none', timeout=120).ok()
    comparing.assert_cases(expected, result, 1)


FIRST_VALUES = BODIES / 'first_values.py'


@pytest.fixture(scope='module')
def first_steps():
    """MXNet alone, with worker 0's networks."""
    return comparing.reference(FIRST_VALUES)


@pytest.mark.parametrize('launcher, env', [('horovodrun', {}), slow('launch.py', {}),
                                           slow('horovodrun', {'MXHYBRID_ROW_TRANSPORT': 'ps-lite'})])
def test_first_steps_begin_with_the_values_of_worker_0(first_steps, launcher, env):
    result = run_job(FIRST_VALUES, launcher, workers=2, env=env, timeout=200).ok()
    assert len(first_steps) > 20
    comparing.assert_cases(first_steps, result, 2)
    said = [line for line in result.output.splitlines() if 'gradients of its first step' in line]
    assert len(said) == 1 and 'worker 1 has computed' in said[0] and 'weight than worker 0' in said[0], said
