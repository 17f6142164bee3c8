"""The parts of scripts/fuzz: how programs are drawn, written, compared and made small."""
import copy
import json

import numpy as np
import pytest
from lab.fuzz import pieces, runner, session, shrinking
from lab.fuzz.drawing import PER_JOB, draw
from lab.fuzz.program import has, optimizer_of, parameters, update_on_store
from lab.fuzz.script import check_names, standing_alone
from lab.fuzz.tables import TABLES

SEEDS = range(0, 12 * PER_JOB)


def execute(program):
    """Return the values of a program that runs here with MXNet alone."""
    namespace = {'__name__': 'program'}
    exec(compile(standing_alone([program]), 'program', 'exec'), namespace)
    record = namespace['Record']()
    namespace['program_1'](namespace['Job'](True), record, '/nowhere')
    return record.values


def small(**changes):
    """Return a program of two steps."""
    step = {'do': 'step', 'seed': 3, 'samples': 6, 'use': ['all', 'all'], 'ids': 'any'}
    program = {
        'seed': 1, 'job': {'launcher': 'horovodrun', 'workers': 3, 'servers': 2, 'row_transport': 'ps-lite'},
        'model': {'dtype': 'float32', 'devices': 1, 'bias': True, 'units': 3, 'add': False, 'branches': [
            {'block': 'Branch', 'kind': kind, 'rows': 12, 'width': 4, 'uses': 1} for kind in ('gradient', 'dense')]},
        'optimizer': {'name': 'adam', 'options': {'learning_rate': 0.1, 'wd': 0.1}, 'scheduler': None},
        'asked': None, 'store': {'partitions': 2}, 'looks': True, 'events': [step, dict(step, seed=4)]}
    return dict(program, **changes)


def params_of(model):
    """Return the parameters of the net of a model."""
    branches = [(getattr(pieces, branch['block']), {name: value for name, value in branch.items() if name != 'block'})
                for branch in model['branches']]
    return pieces.make_net(pieces.Job(True), *branches, bias=model['bias'])[1]


def shrunken(kind, program, fails):
    """Return the smallest program that fails, and the number of rounds of candidates."""
    rounds, reduction = [], shrinking.shrink(program, 0, kind.structures, kind.changes)

    def verdicts(places):
        rounds.append([fails(program) for _, program in places])
        return rounds[-1]
    return shrinking.drive({'it': reduction}, verdicts)['it'], len(rounds)


def test_a_seed_gives_one_program_that_survives_json():
    programs = [draw(seed) for seed in SEEDS]
    assert programs == [draw(seed) for seed in SEEDS] == json.loads(json.dumps(programs))
    assert all(20 <= len(program['events']) <= 60 for program in programs)
    assert len({repr(program['job']) for program in programs[:PER_JOB]}) == 1


def test_everything_is_drawn():
    programs = [draw(seed) for seed in SEEDS]
    events = [event for program in programs for event in program['events']]
    assert {event['do'] for event in events} == {
        'step', 'steps ahead', 'rate', 'attribute', 'multiplier', 'grad_req', 'evaluate', 'save', 'load', 'set',
        'initialise', 'read', 'repartition', 'prefetch', 'hybridize', 'report', 'trainer', 'renew'}
    steps = [event for event in events if event['do'] == 'step']
    assert {event['split'] for event in steps} == {'even', 'uneven', 'one', 'same'}
    assert {how for event in steps for how in event['use']} == {'all', 'some', 'none'}
    assert {event.get('by') for event in steps} == {None, 'hand', 'update'}
    assert {program['job']['workers'] for program in programs} >= {2, 3, 4}
    assert {program['job']['launcher'] for program in programs} >= {'horovodrun', 'launch.py'}
    assert all(any(has(program, kind) for program in programs) for kind in ('weight', 'gradient', 'dense', 'tied'))
    assert any('shared' in branch for program in programs for branch in program['model']['branches'])
    assert {program['model']['devices'] for program in programs} == {1, 2}
    assert {program['optimizer']['name'] for program in programs} >= {
        'sgd', 'nag', 'adam', 'adagrad', 'groupadagrad', 'ftrl', 'rmsprop', 'adadelta', 'lamb', 'ftml'}
    assert {update_on_store(program) for program in programs} == {True, False}


def test_scripts_have_all_that_they_name():
    for seed in SEEDS[::20]:
        source = standing_alone([draw(seed), draw(seed + 1)])
        check_names(source)
        assert max(map(len, source.splitlines())) <= 120
    with pytest.raises(NameError, match='nothing_like_it'):
        check_names('print(nothing_like_it)')


def test_a_program_runs_and_a_planted_difference_is_seen():
    program = small()
    expected = execute(program)
    assert any('predictions' in name for name in expected) and '02/0 net_branch0_embedding0_weight' in expected
    assert pieces.differences(expected, execute(program), {}, 0, 0) == []
    other = copy.deepcopy(program)
    other['optimizer']['options']['learning_rate'] *= 1.001
    found = pieces.differences(expected, execute(other), {}, 1e-5, 1e-6)
    assert found and not any(name.startswith('01/pred') for name, _ in found)


@pytest.mark.parametrize('bias', [True, False])
def test_places_of_parameters_are_those_of_the_net(bias):
    branches = [{'block': 'Branch', 'kind': 'tied', 'rows': 5, 'width': 2, 'uses': 1},
                {'block': 'Branch', 'kind': 'weight', 'rows': 7, 'width': 2, 'uses': 1},
                {'block': 'Branch', 'kind': 'weight', 'rows': 7, 'width': 2, 'uses': 1, 'shared': 1},
                {'block': 'HybridBranch', 'kind': 'gradient', 'rows': 9, 'width': 2, 'uses': 2}]
    model = {'branches': branches, 'bias': bias}
    params, known = params_of(model), parameters(model)
    assert [param.number for param in known] == list(range(len(params)))
    for param, real in zip(known, params):
        assert bool(param.kind) == ('embedding' in real.name)
        assert ('branch%d_' % param.branch in real.name) == (param.branch >= 0)
        assert real.shape[0] == param.rows or not param.kind
        assert (real._stype == 'row_sparse') == (param.kind == 'weight')


def test_events_keep_their_parameters_while_branches_go():
    program = small()
    names = [param.name for param in params_of(program['model'])]
    program['events'] = [{'do': 'multiplier', 'number': number, 'name': 'lr_mult', 'value': number}
                         for number in range(len(names))]

    def left(program):
        params = params_of(program['model'])
        return {names[event['value']]: params[event['number']].name for event in program['events']}
    assert left(program) == {name: name for name in names}
    first, second = shrinking.without_branch(program, 1), shrinking.without_branch(program, 0)
    assert left(first) == {name: name for name in names if 'branch1' not in name}
    assert left(second) == {name: name.replace('branch1', 'branch0') for name in names if 'branch0' not in name}
    plain = [each for each in shrinking.plain_structures(program) if not each['model']['bias']][0]
    assert left(plain) == {name: name for name in names if 'bias' not in name}


def test_a_failing_program_is_made_small():
    def fails(program):
        # A new rate before a step with sparse gradients, in a program with weight decay.
        kinds = [event['do'] for event in program['events']]
        return ('rate' in kinds and 'step' in kinds[kinds.index('rate'):] and has(program, 'gradient')
                and 'wd' in program['optimizer']['options'])
    program = next(program for program in map(draw, SEEDS) if fails(program) and len(program['model']['branches']) > 1)
    shrunk, rounds = shrunken(runner.PLAIN, program, fails)
    assert [event['do'] for event in shrunk['events']] == ['rate', 'step']
    assert [branch['kind'] for branch in shrunk['model']['branches']] == ['gradient']
    assert sorted(shrunk['optimizer']['options']) == ['learning_rate', 'wd']
    assert shrunk['job'] == {'launcher': 'horovodrun', 'workers': 2, 'servers': 1, 'row_transport': 'auto'}
    assert shrunk['store'] == {} and shrunk['model']['devices'] == 1 and not shrunk['model']['bias']
    assert rounds < 40


def test_an_optimizer_may_change_on_the_way():
    program = small()
    program['events'].insert(1, {'do': 'trainer', 'store': {}, 'optimizer': {'name': 'sgd', 'options': {}}})
    assert [optimizer_of(program, at)['name'] for at in range(3)] == ['adam', 'sgd', 'sgd']


def test_values_that_rounding_changes_may_differ_more():
    values, nudged = {'01/0 w': np.array([1, 2.0]), '02/0 w': np.ones(3)}, {'01/0 w': np.array([1, 2 + 1e-4]),
                                                                             '02/0 w': np.ones(3)}
    slack = pieces.slack_of(values, nudged)
    assert slack['01/0 w'] == pytest.approx(5e-3) and slack['02/0 w'] == 0
    found = {name: value + 2e-3 for name, value in values.items()}
    assert [name for name, _ in pieces.differences(values, found, slack, 1e-5, 1e-6)] == ['02/0 w']


def test_verdicts():
    program = small()
    expected = runner.Side(None, [{'01/begun': np.array(0), '01/0 w': np.ones(2), '02/predictions': np.ones(2)}])

    def judged(*workers, problem=None):
        return runner._judge(program, expected, runner.Side(problem, list(workers)))
    same = expected.values[0]
    assert judged(same, same).kind == 'same'
    # Each worker has its own predictions.
    half = dict(same, **{'02/predictions': np.array([1, np.nan])})
    assert judged(half, half).kind == 'same'
    assert judged(dict(half, **{'02/predictions': np.array([2, np.nan])}), half)[::2] == ('differs', 2)
    wrong = dict(same, **{'01/0 w': np.array([1, 1.001])})
    assert judged(same, wrong)[::2] == ('differs', 1)
    close = dict(same, **{'01/0 w': np.array([1, 1 + 1e-9])})
    assert judged(same, close)[::2] == ('workers differ', 1)
    assert judged(dict(same, **{'01/0 w': np.array([1, np.nan])}), same).kind == 'differs'
    assert judged({'01/begun': np.array(0)}, {'01/begun': np.array(0)}).words.startswith('not in the job')
    refused = runner.Outcome('refused', 'InputError', 2)
    assert judged(same, same, problem=refused) == refused
    assert judged(same, wrong, problem=refused).kind == 'differs'
    assert runner._judge(program, runner.Side(refused, []), None).kind == 'invalid'


def test_a_program_is_shown_with_those_that_matter(monkeypatch):
    programs = [small(seed=seed) for seed in range(9)]

    def run(chosen, kind):
        seeds = [program['seed'] for program in chosen]
        return [runner.Outcome('same')] * (len(seeds) - 1) + [
            runner.Outcome('differs' if {2, 5} <= set(seeds) and seeds[-1] == 8 else 'same')]
    monkeypatch.setattr(runner, 'run', run)
    assert [program['seed'] for program in session.with_those_before(programs, 'differs')] == [2, 5, 8]
    assert session.with_those_before(programs[:8], 'differs') == []


def test_the_summary_counts_and_groups():
    run = session.Session()
    run.outcomes.update({1: runner.Outcome('same'),
                         2: runner.Outcome('refused', 'InputError in step: net_a_weight has 3 rows', 4),
                         3: runner.Outcome('refused', 'InputError in step: net_b_weight has 7 rows', 4),
                         4: runner.Outcome('invalid', 'ValueError in save: no', 1)})
    text = run.summary(120)
    assert '4 programs in 2 min: 2 refused, 1 same, 1 invalid' in text
    assert 'refused, 2 times, as with seed 2: InputError in step: PARAMETER has N rows' in text
    assert text.endswith('failing seeds: 2, 3')


def test_programs_with_dynamic_tables_have_every_event():
    programs = [TABLES.draw(seed) for seed in range(200)]
    assert programs == [TABLES.draw(seed) for seed in range(200)] == json.loads(json.dumps(programs))
    events = [event for program in programs for event in program['events']]
    assert {event['do'] for event in events} == {
        'step', 'rate', 'freeze', 'thaw', 'evaluate', 'set', 'initialise', 'save', 'load', 'resume', 'move',
        'import_rows'}
    assert {event.get('fails') for event in events} == {
        None, 'width', 'read', 'push', 'interrupt', 'place', 'extra'}
    for program in programs[::20]:
        check_names(TABLES.standing_alone([program]))


def test_a_program_with_dynamic_tables_is_made_small():
    def fails(program):
        # A load after an import into a table whose rows expire.
        imports = [number for number, event in enumerate(program['events']) if event['do'] == 'import_rows'
                   and 'expire_after' in program['tables'][event['table']]['options']]
        return bool(imports) and 'load' in [event['do'] for event in program['events'][imports[0]:]]
    program = next(filter(fails, map(TABLES.draw, range(1000))))
    shrunk, _ = shrunken(TABLES, program, fails)
    assert [event['do'] for event in shrunk['events']] == ['import_rows', 'load']
    assert [list(table['options']) for table in shrunk['tables']] == [['expire_after']]
    assert shrunk['job']['launcher'] == 'none' and len(shrunk['features']) == 1
