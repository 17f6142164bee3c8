"""The Trainer keeps its promises: every case of ``promises.py`` equals one process; gone Trainers leave nothing."""
import pytest
from lab.jobs import run_job

from ...helpers import comparing
from ...helpers.joint_jobs import body, run_together
from ...helpers.turns import by_turns, slow
from . import BODIES

BODY = BODIES / 'promises.py'


@pytest.fixture(scope='module')
def alone(tmp_path_factory):
    """The results of MXNet alone, and the folder of its files."""
    directory = tmp_path_factory.mktemp('alone')
    expected = comparing.reference(BODY, '--directory', str(directory))
    # MXNet pushes before it tests for overflow where the store updates; a dense weight takes the same steps.
    expected['overflow/weight'] = expected['overflow/gradient']
    return expected, directory


def of_tables(alone):
    """Return the cases about tables: dense parameters have the same route under each launcher, in each job."""
    return {case: arrays for case, arrays in alone[0].items() if '/dense' not in case or case.startswith('save/')}


@pytest.fixture(scope='module')
def two_workers(alone, tmp_path_factory):
    """Two workers with one server, by the routes that they choose and with all tables on workers, and where they save.
    """
    folders = {name: tmp_path_factory.mktemp(name) for name in ('together', 'replicated')}
    results = run_together({
        'together': body(BODY, '--directory', folders['together']),
        'replicated': body(BODY, '--directory', folders['replicated'], '--cases', ','.join(of_tables(alone)),
                           MXHYBRID_ROUTES='allreduce')}, 'horovodrun', workers=2, timeout=280)
    return {name: (results[name], folder) for name, folder in folders.items()}


@pytest.fixture(scope='module')
def together(two_workers):
    """The results of two workers with one server, and the folder of their files."""
    return two_workers['together']


def test_horovodrun(alone, together):
    comparing.assert_cases(alone[0], together[0], 2)


@pytest.mark.slow  # under launch.py, training, own optimizers and the code around a loop are tested by default
def test_launch_py(alone, tmp_path):
    args = ['--directory', str(tmp_path), '--partitions', '5', '--cases', ','.join(of_tables(alone))]
    result = run_job(BODY, 'launch.py', workers=3, servers=2, args=args, timeout=240).ok()
    comparing.assert_cases(of_tables(alone), result, 3)


@pytest.fixture(scope='module')
def replicated(two_workers):
    """The results of two workers that hold all tables, and the folder of their files."""
    return two_workers['replicated']


def test_tables_forced_to_allreduce(alone, replicated):
    comparing.assert_cases(of_tables(alone), replicated[0], 2)


@pytest.fixture(scope='module')
def one_process(together, replicated, tmp_path_factory):
    """The results of one process: trained by mxhybrid, and by MXNet's own store from files of two workers."""
    bodies = {'hybrid': body(BODY, '--directory', tmp_path_factory.mktemp('one'))}
    for name, (_, directory) in (('together', together), ('replicated', replicated)):
        bodies[name] = body(BODY, '--kvstore', 'device', '--directory', directory, '--cases', 'resume')
    return run_together(bodies, 'none', timeout=200)


def test_one_process(alone, one_process):
    comparing.assert_cases(alone[0], one_process['hybrid'], 1)


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
def test_states_move_to_one_process(alone, one_process, saved_by):
    result = one_process[saved_by]
    expected = {case: arrays for case, arrays in alone[0].items() if case.startswith('resume/')}
    comparing.assert_cases(expected, result, 1)


GONE_BODY = BODIES / 'trainers.py'

KINDS = {'kind/own': 'on-demand rows', 'kind/gradients': 'server gradients', 'kind/sums': 'row allreduce'}


@pytest.fixture(scope='module')
def expected():
    """MXNet alone."""
    return comparing.reference(GONE_BODY)


@pytest.mark.parametrize('launcher, servers', [('horovodrun', 1), slow('launch.py', 2)])
def test_one_trainer_after_the_other(expected, launcher, servers):
    result = run_job(GONE_BODY, launcher, workers=2, servers=servers, timeout=240).ok()
    first = result.results[0]
    comparing.assert_cases({name: found for name, found in expected.items() if isinstance(found, dict)}, result, 2)
    assert {name: first[name] for name in KINDS} == KINDS
    assert first['servers'] == servers
    for case, readings in first['seen'].items():
        # The first few may hold two tables at a time, or buffers that stay.  A leak is a table or more for each one.
        slack = 4 * first['table']
        assert len(readings) >= 10 and (len(readings) - 3) * first['table'] > 1.5 * slack
        assert len({reading['keys'] for reading in readings[3:]}) == 1, (case, readings)
        assert max(reading['sums'] for reading in readings) < readings[0]['sums'] + 10, (case, readings)
        seen = {process: [reading[process] for reading in readings] for process in ('servers', 'load')}
        seen.update((rank, [reading['worker'] for reading in values['seen'][case]])
                    for rank, values in result.results.items())
        for process, held in seen.items():
            assert max(held[3:]) < max(held[:3]) + slack, (case, process, held)
