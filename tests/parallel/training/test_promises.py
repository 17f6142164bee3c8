"""The Trainer keeps its promises: every case of ``promises.py`` equals MXNet in one process on the joined batch."""
import pytest
from lab.jobs import run_job

from ...helpers import comparing
from ...helpers.turns import by_turns
from . import BODIES

BODY = BODIES / 'promises.py'


@pytest.fixture(scope='module')
def alone(tmp_path_factory):
    """MXNet alone, and where it saved."""
    directory = tmp_path_factory.mktemp('alone')
    expected = comparing.reference(BODY, '--directory', str(directory))
    # MXNet pushes before it tests for overflow where the store updates; a dense weight takes the same steps.
    expected['overflow/weight'] = expected['overflow/gradient']
    return expected, directory


def of_tables(alone):
    """The cases that say something of a route: dense parameters go by the same one under each launcher, in each job."""
    return {case: arrays for case, arrays in alone[0].items() if '/dense' not in case or case.startswith('save/')}


@pytest.fixture(scope='module')
def together(tmp_path_factory):
    """Two workers with one server, and where they saved."""
    directory = tmp_path_factory.mktemp('together')
    result = run_job(BODY, 'horovodrun', workers=2, args=['--directory', str(directory)], timeout=240).ok()
    return result, directory


def test_horovodrun(alone, together):
    comparing.assert_cases(alone[0], together[0], 2)


@pytest.mark.slow  # under launch.py, training, own optimizers and what surrounds a loop are tested by default
def test_launch_py(alone, tmp_path):
    args = ['--directory', str(tmp_path), '--partitions', '5', '--cases', ','.join(of_tables(alone))]
    result = run_job(BODY, 'launch.py', workers=3, servers=2, args=args, timeout=240).ok()
    comparing.assert_cases(of_tables(alone), result, 3)


@pytest.fixture(scope='module')
def replicated(alone, tmp_path_factory):
    """Two workers that hold all tables, and where they saved."""
    directory = tmp_path_factory.mktemp('replicated')
    args = ['--directory', str(directory), '--cases', ','.join(of_tables(alone))]
    result = run_job(BODY, 'horovodrun', workers=2, args=args, timeout=240, env={'MXHYBRID_ROUTES': 'allreduce'}).ok()
    return result, directory


def test_tables_forced_to_allreduce(alone, replicated):
    comparing.assert_cases(of_tables(alone), replicated[0], 2)


def test_one_process(alone, tmp_path):
    result = run_job(BODY, 'none', args=['--directory', str(tmp_path)], timeout=120).ok()
    comparing.assert_cases(alone[0], result, 1)


def test_untouched_tables_survive_new_dense_weights(together):
    kept = together[0].results[0]['one_parameter/weight']
    assert kept['kept'].all() and kept['moved'].all()


@pytest.mark.parametrize('saved_by, launcher, workers, servers, partitions', by_turns(
    ['alone', 'together'], [('horovodrun', 3, 2, 5), ('launch.py', 2, 3, 4)]))
def test_states_move_to_another_job(request, alone, saved_by, launcher, workers, servers, partitions):
    directory = request.getfixturevalue(saved_by)[1]
    result = run_job(BODY, launcher, workers=workers, servers=servers, timeout=120,
                     args=['--directory', str(directory), '--cases', 'resume', '--partitions', str(partitions)]).ok()
    expected = {case: arrays for case, arrays in alone[0].items() if case.startswith('resume/')}
    assert len(expected) > 5
    comparing.assert_cases(expected, result, workers)


@pytest.mark.parametrize('saved_by', ['together', 'replicated'])
def test_states_move_to_one_process(request, alone, saved_by):
    directory = request.getfixturevalue(saved_by)[1]
    result = run_job(BODY, 'none', args=['--kvstore', 'device', '--directory', str(directory), '--cases', 'resume'],
                     timeout=120).ok()
    expected = {case: arrays for case, arrays in alone[0].items() if case.startswith('resume/')}
    comparing.assert_cases(expected, result, 1)
