"""The Trainer keeps its promises: every case of ``promises.py`` equals MXNet in one process on the joined batch."""
import comparing
import pytest
from jobs import BODIES, run_job

BODY = BODIES / 'promises.py'


@pytest.fixture(scope='module')
def alone(tmp_path_factory):
    """MXNet alone, and where it saved."""
    directory = tmp_path_factory.mktemp('alone')
    expected = comparing.reference(BODY, '--directory', str(directory))
    # MXNet pushes before it tests for overflow where the store updates; a dense weight takes the same steps.
    expected['overflow/weight'] = expected['overflow/gradient']
    return expected, directory


@pytest.fixture(scope='module')
def together(tmp_path_factory):
    """Two workers with one server, and where they saved."""
    directory = tmp_path_factory.mktemp('together')
    result = run_job(BODY, 'horovodrun', workers=2, args=['--directory', str(directory)], timeout=240).ok()
    return result, directory


def test_horovodrun(alone, together):
    comparing.assert_cases(alone[0], together[0], 2)


def test_launch_py(alone, tmp_path):
    result = run_job(BODY, 'launch.py', workers=3, servers=2, args=['--directory', str(tmp_path), '--partitions', '5'],
                     timeout=240).ok()
    comparing.assert_cases(alone[0], result, 3)


@pytest.fixture(scope='module')
def replicated(tmp_path_factory):
    """Two workers that hold all tables, and where they saved."""
    directory = tmp_path_factory.mktemp('replicated')
    result = run_job(BODY, 'horovodrun', workers=2, args=['--directory', str(directory)], timeout=240,
                     env={'MXHYBRID_ROUTES': 'allreduce'}).ok()
    return result, directory


def test_tables_forced_to_allreduce(alone, replicated):
    comparing.assert_cases(alone[0], replicated[0], 2)


def test_one_process(alone, tmp_path):
    result = run_job(BODY, 'none', args=['--directory', str(tmp_path)], timeout=120).ok()
    comparing.assert_cases(alone[0], result, 1)


def test_untouched_tables_survive_new_dense_weights(together):
    kept = together[0].results[0]['one_parameter/weight']
    assert kept['kept'].all() and kept['moved'].all()


@pytest.mark.parametrize('saved_by', ['alone', 'together'])
@pytest.mark.parametrize('launcher, workers, servers, partitions', [('horovodrun', 3, 2, 5), ('launch.py', 2, 3, 4)])
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
