"""Fixed samples of scripts/fuzz; planted differences are found, made small and shown."""
import re
import signal
import sys

import psutil
import pytest
from lab.fuzz import runner, session
from lab.fuzz.drawing import PER_JOB, draw
from lab.fuzz.networks import runner as networks_runner, session as networks_session
from lab.fuzz.networks.drawer import Drawer
from lab.fuzz.networks.script import standing_alone as network_standing_alone
from lab.fuzz.script import standing_alone
from lab.fuzz.tables import TABLES
from lab.jobs import run_job, start_command
from lab.launchers import SCRIPTS

#: Batches of programs, which have different launchers and numbers of workers, and the number of programs of each.
BATCHES, PROGRAMS = (0, 4), 8

#: Batches of programs with dynamic tables, in one process and in two jobs, and the number of programs of each.
TABLE_BATCHES, TABLE_PROGRAMS = (0, 1), 11

#: Networks for each number of workers.
NETWORKS = 10


@pytest.mark.parametrize('batch', BATCHES)
def test_random_programs_give_what_mxnet_alone_gives(batch):
    programs = [draw(batch * PER_JOB + number) for number in range(PROGRAMS)]
    outcomes = runner.run(programs)
    failing = {program['seed']: outcome for program, outcome in zip(programs, outcomes) if outcome.fails}
    assert not failing, '\n'.join('seed %d (scripts/fuzz --seed %d shrinks it): %s' % (seed, seed, outcome)
                                  for seed, outcome in failing.items())
    assert sum(outcome.kind == 'same' for outcome in outcomes) > 0.8 * PROGRAMS


def test_a_planted_difference_is_found_made_small_and_shown(tmp_path):
    program = draw(3)
    program['job'] = {'launcher': 'none', 'workers': 1, 'servers': 1, 'row_transport': 'auto'}
    program['events'] = program['events'][:4]

    def plant(source):
        # The job's steps are a little longer.
        return re.sub(r'(?m)^( *)(record.at\(1,)', r'\1trainer._scale *= 1.01\n\1\2', source)
    outcome, = runner.run([program], plant)
    assert outcome.kind == 'differs'
    small = session.shrink(program, outcome, plant)
    assert [event['do'] for event in small['events']] == ['step'] and len(small['model']['branches']) == 1
    assert small['optimizer']['name'] == 'sgd' and list(small['optimizer']['options']) == ['learning_rate']

    script = tmp_path / 'case.py'
    script.write_text(standing_alone([small], str(script)))
    run_job(script, 'none', args=['--mxnet']).ok()
    assert 'worker 0: no difference' in run_job(script, 'none').ok().output
    script.write_text(plant(script.read_text()))
    run_job(script, 'none').failed('worker 0, event 01/')


@pytest.mark.parametrize('batch', TABLE_BATCHES)
def test_random_programs_with_dynamic_tables_equal_a_model(batch):
    programs = [TABLES.draw(batch * TABLES.per_job + number) for number in range(TABLE_PROGRAMS)]
    outcomes = runner.run(programs, kind=TABLES)
    assert {outcome.kind for outcome in outcomes} == {'same'}, '\n'.join(
        'scripts/fuzz tables --seed %d shrinks it: %s' % (program['seed'], outcome)
        for program, outcome in zip(programs, outcomes) if outcome.kind != 'same')


def test_a_difference_of_dynamic_tables_is_made_small():
    program = dict(TABLES.draw(11), job=dict(TABLES.draw(11)['job'], launcher='none', workers=1, servers=0))

    def plant(source):
        # Rows that are imported have other values.
        return source.replace('self.net.tables[table], keys,', 'self.net.tables[table], keys + 1,')
    assert [event['do'] for event in program['events']].count('import_rows')
    outcome, = runner.run([program], plant, TABLES)
    assert outcome.kind == 'differs'
    small = session.shrink(program, outcome, plant, TABLES)
    assert [event['do'] for event in small['events']] == ['import_rows'] and len(small['tables']) == 1
    assert small['optimizer'] == ['sgd', {'learning_rate': 0.1}] and small['events'][0]['count'] == 7


@pytest.mark.parametrize('ranks', [2, 3, 4], ids='{} ranks'.format)
def test_random_networks_give_what_one_process_gives(ranks):
    seeds = [seed for seed in range(3 * NETWORKS) if networks_session.workers_of(seed, [2, 3, 4]) == ranks]
    with Drawer() as drawer:
        programs = [dict(drawer.draw(seed, ranks), shard_updates=ranks == 3) for seed in seeds]
    outcomes = dict(zip(seeds, networks_runner.run(programs)))
    failing = {seed: outcome for seed, outcome in outcomes.items() if outcome.kind not in ('same', 'refused')}
    assert not failing, '\n'.join('seed %d (scripts/fuzz networks --seed %d shrinks it): %s' % (
        seed, seed, outcome) for seed, outcome in failing.items())
    assert sum(outcome.kind == 'same' for outcome in outcomes.values()) > 0.8 * len(seeds)


def test_a_planted_difference_of_a_network_is_found(tmp_path):
    data = {'name': 'data0', 'shape': [4, 3], 'axis': 0, 'values': 'ties', 'dtype': 'float64', 'limit': 5}
    program = {
        'seed': 1, 'workers': 2, 'inputs': [data], 'params': [{'name': 'weight0', 'shape': [1, 3]}], 'layers': [],
        'statements': [{'name': 'x0', 'op': 'broadcast_mul', 'code': 'F.broadcast_mul({0}, {1})',
                        'reads': ['data0', 'weight0']},
                       # One process has other numbers.
                       {'name': 'x1', 'op': 'planted', 'code': 'F.sin({0})',
                        'whole': 'F.sin({0} * 1.001) + {given} * 0', 'drawn': 'numbers', 'reads': ['x0']},
                       {'name': 'x2', 'op': 'cos', 'code': 'F.cos({0})', 'reads': ['x1']}],
        'heads': [{'name': 'x0', 'drawn': None}, {'name': 'x2', 'drawn': None}, {'name': 'x1', 'drawn': 'numbers'}],
        'plan': {'kind': 'one_weird_trick'}, 'frozen': [], 'input_grad': True, 'steps': 2, 'calls': 1,
        'optimizer': {'learning_rate': 0.0625}, 'on_store': None, 'shard_updates': False, 'end': 'release',
        'events': []}
    with Drawer() as drawer:
        program = drawer.examined(program)
    outcome, = networks_runner.run([program])
    assert outcome.kind == 'differs'
    script = tmp_path / 'case.py'
    script.write_text(network_standing_alone(program, str(script)))
    assert re.search(r'step 0: .*elements differ', run_job(script, 'horovodrun', workers=2).ok().output)


def test_a_fuzzer_that_is_terminated_ends_its_job():
    with start_command([sys.executable, str(SCRIPTS / 'fuzz'), '--first', '0', '--programs', '20']) as command:
        command.wait_until(lambda: any('body.py' in process.cmdline for process in command.processes()), 90,
                           'a job of the fuzzer')
        started = psutil.Process(command.pid).children(recursive=True)
        command.kill(command.pid, signal.SIGTERM)
        result = command.wait(timeout=60)
    assert result.returncode == 130, result.output
    _, left = psutil.wait_procs(started, timeout=10)
    assert not left
