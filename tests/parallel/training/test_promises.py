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
    return comparing.reference(BODY, '--directory', directory), directory


def of_tables(alone):
    """Return the cases about tables: dense parameters have the same route under each launcher, in each job."""
    return {case: arrays for case, arrays in alone[0].items() if '/dense' not in case or case.startswith('save/')}


@pytest.fixture(scope='module')
def two_workers(alone, tmp_path_factory):
    """The results of two workers with one server, by the routes that they choose ('together') and with all tables on
    workers ('replicated'), and the folders of their files.
    """
    folders = {name: tmp_path_factory.mktemp(name) for name in ('together', 'replicated')}
    results = run_together({
        'together': body(BODY, '--directory', folders['together']),
        'replicated': body(BODY, '--directory', folders['replicated'], '--cases', ','.join(of_tables(alone)),
                           MXHYBRID_ROUTES='allreduce')}, 'horovodrun', workers=2, timeout=280)
    return {name: (results[name], folder) for name, folder in folders.items()}


def test_horovodrun(alone, two_workers):
    comparing.assert_cases(alone[0], two_workers['together'][0], 2)


def test_tables_forced_to_allreduce(alone, two_workers):
    comparing.assert_cases(of_tables(alone), two_workers['replicated'][0], 2)


@pytest.mark.slow  # under launch.py, training, own optimizers and the code around a loop are tested by default
def test_launch_py(alone, tmp_path):
    args = ['--directory', tmp_path, '--partitions', 5, '--cases', ','.join(of_tables(alone))]
    result = run_job(BODY, 'launch.py', workers=3, servers=2, args=args, timeout=240).ok()
    comparing.assert_cases(of_tables(alone), result, 3)


@pytest.fixture(scope='module')
def one_process(two_workers, tmp_path_factory):
    """The results of one process: trained by mxhybrid, and by MXNet's own store from files of two workers."""
    bodies = {'hybrid': body(BODY, '--directory', tmp_path_factory.mktemp('one'))}
    for name, (_, directory) in two_workers.items():
        bodies[name] = body(BODY, '--kvstore', 'device', '--directory', directory, '--cases', 'resume')
    return run_together(bodies, 'none', timeout=200)


def test_one_process(alone, one_process):
    comparing.assert_cases(alone[0], one_process['hybrid'], 1)


def test_untouched_tables_survive_new_dense_weights(two_workers):
    kept = two_workers['together'][0].results[0]['one_parameter/weight']
    assert kept['kept'].all() and kept['moved'].all()


def resumed(alone):
    """Return the cases that load the files of another job."""
    cases = {case: arrays for case, arrays in alone[0].items() if case.startswith('resume/')}
    assert len(cases) > 5
    return cases


@pytest.mark.parametrize('saved_by, launcher, workers, servers, partitions', by_turns(
    ['alone', 'together'], [('horovodrun', 3, 2, 5), ('launch.py', 2, 3, 4)]))
def test_states_move_to_another_job(alone, two_workers, saved_by, launcher, workers, servers, partitions):
    directory = alone[1] if saved_by == 'alone' else two_workers['together'][1]
    result = run_job(BODY, launcher, workers=workers, servers=servers, timeout=120,
                     args=['--directory', directory, '--cases', 'resume', '--partitions', partitions]).ok()
    comparing.assert_cases(resumed(alone), result, workers)


@pytest.mark.parametrize('saved_by', ['together', 'replicated'])
def test_states_move_to_one_process(alone, one_process, saved_by):
    comparing.assert_cases(resumed(alone), one_process[saved_by], 1)


TRAINERS = BODIES / 'trainers.py'

KINDS = {'kind/own': 'on-demand rows', 'kind/gradients': 'server gradients', 'kind/sums': 'row allreduce'}


@pytest.mark.parametrize('launcher, servers', [('horovodrun', 1), slow('launch.py', 2)])
def test_one_trainer_after_the_other(launcher, servers):
    result = run_job(TRAINERS, launcher, workers=2, servers=servers, timeout=240).ok()
    first = result.results[0]
    comparing.assert_cases(comparing.reference(TRAINERS), result, 2)
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
