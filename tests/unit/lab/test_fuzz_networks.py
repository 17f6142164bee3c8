"""The parts of scripts/fuzz networks: how networks are drawn, written, compared and made small."""
import json
import random

import numpy as np
import pytest
from lab.fuzz import cli
from lab.fuzz.networks import pieces, runner, session, shrinking, training
from lab.fuzz.networks.alone import class_of, examine
from lab.fuzz.networks.body import reference
from lab.fuzz.networks.catalogue import ENTRIES
from lab.fuzz.networks.catalogue.coverage import reasons, table
from lab.fuzz.networks.drawer import Drawer
from lab.fuzz.networks.events import EVENTS, draw_event
from lab.fuzz.networks.network import Rejected, pruned, tolerance_of, typed
from lab.fuzz.networks.script import network, spec_of, standing_alone
from lab.fuzz.runner import Outcome
from lab.fuzz.script import check_names
from lab.fuzz.shrinking import drive

SEEDS = range(0, 60)

DATA_PARALLEL = {'kind': 'data_parallel'}


@pytest.fixture(scope='module')
def programs():
    """Draw the programs of all seeds."""
    with Drawer() as drawer:
        yield [drawer.draw(seed, session.workers_of(seed, [2, 3, 4])) for seed in SEEDS]


def data(*shape, values='ties'):
    """Return an input whose first dimension has the samples."""
    return {'name': 'data0', 'shape': list(shape), 'axis': 0, 'values': values, 'dtype': 'float64', 'limit': 5}


def statements_of(*statements):
    """Return the statements x0, x1, ...: each has an operator, code, the values that it reads, and other entries."""
    return [{'name': 'x%d' % number, 'op': op, 'code': code, 'reads': reads.split(), **dict(*known)}
            for number, (op, code, reads, *known) in enumerate(statements)]


def heads_of(*names):
    """Return the outputs with these names."""
    return [{'name': name, 'drawn': None} for name in names]


def small(**changes):
    """Make a network of four statements with a learned layer and an output that has no samples."""
    return examine(pruned(dict({
        'seed': 1, 'workers': 3, 'inputs': [data(4, 3)], 'params': [{'name': 'weight0', 'shape': [1, 3]}],
        'layers': [{'name': 'dense0', 'make': 'nn.Dense(3, in_units=3)'}],
        'statements': statements_of(
            ('relu', 'F.relu({0})', 'data0'), ('Dense', 'self.dense0({0})', 'x0'),
            ('broadcast_mul', 'F.broadcast_mul({0}, {1})', 'x1 weight0'), ('sum', 'F.sum({0}, axis=0)', 'x2')),
        'heads': heads_of('x2', 'x3'), 'frozen': [],
        'plan': {'kind': 'splits', 'splits': {'x0': [[2, 1], [0, 1], 1, 1], 'x2': [[3, 1], [0, 1, 2], 1, 1]}},
        'input_grad': True, 'steps': 3, 'calls': 2, 'optimizer': {'learning_rate': 0.0625, 'momentum': 0.5},
        'on_store': True, 'shard_updates': False, 'end': 'release', 'events': []}, **changes)))


def test_a_seed_gives_one_program_that_survives_json(programs):
    with Drawer() as drawer:
        for program in programs[::20]:
            assert program == json.loads(json.dumps(program)) == drawer.draw(program['seed'], program['workers'])


def test_all_sorts_are_drawn(programs):
    plans = {program['plan']['kind'] for program in programs}
    assert plans == {'data_parallel', 'one_weird_trick', 'grid', 'megatron', 'pipeline', 'layers', 'splits'}
    assert any('sequence' in program['plan'] and program['plan']['kind'] == 'grid' for program in programs)
    assert any('recompute' in program['plan'] for program in programs)
    splits = [split for program in programs if program['plan']['kind'] == 'splits'
              for split in program['plan']['splits'].values()]
    assert any(copies > 1 for *_, copies in splits) and any(max(degrees) > 1 for degrees, *_ in splits)
    assert all(len(split) == 4 for split in splits)
    inputs = [each for program in programs for each in program['inputs']]
    assert {each['values'] for each in inputs} == {'ties', 'reals', 'ids'}
    assert {each['axis'] for each in inputs} >= {0, 1, 2}
    assert any(each['shape'].count(each['shape'][each['axis'] or 0]) > 1 for each in inputs)
    assert {program['calls'] for program in programs} == {1, 2}
    assert any(head['drawn'] for program in programs for head in program['heads'])
    assert any(len(program['heads']) > 2 for program in programs)
    ops = {statement['op'] for program in programs for statement in program['statements']}
    assert len(ops) > 80 and ops & {'Dense again', 'Conv again', 'BatchNorm again', 'LayerNorm again'}
    assert 'Custom' in ops and any(len(each['shape']) == 6 for each in inputs)
    assert {'release', 'drop', 'keep'} == {program['end'] for program in programs}
    assert any(program['frozen'] for program in programs) and any(program['shard_updates'] for program in programs)
    assert any(len(program['events']) > 2 for program in programs)


def test_all_events_are_drawn():
    program = small(on_store=False)
    events = [event for seed in range(400) for event in draw_event(program, ['net_weight0'], ['net_weight0'],
                                                                   random.Random(seed))]
    assert {event['do'] for event in events} | {'freeze', 'accumulate'} == set(EVENTS)
    assert {(event['what'], event['loads']) for event in events if event['do'] == 'file'} == {
        (what, loads) for what in ('parameters', 'dict', 'states', 'checkpoint') for loads in (False, True)}
    assert {event['place'] for event in events} == {'before', 'between', 'after'}


def test_layers_that_are_left_out_are_not_computed_again():
    program = small(plan={'kind': 'data_parallel', 'recompute': ['dense0', 'conv0']})
    assert program['plan'] == {'kind': 'data_parallel', 'recompute': ['dense0']}
    assert pieces.plan_of(program['plan']).recompute == ('dense0',)
    assert 'recompute' not in pruned(dict(program, heads=heads_of('x0')))['plan']


def test_events_change_training_and_refused_ones_are_omitted(tmp_path):
    def weights(*events, drawn=None, **changes):
        program = small(events=[{'place': 'before', 'params': ['net_weight0'], **event} for event in events], **changes)
        record = training.run_whole(class_of(program), spec_of(program), drawn, str(tmp_path))
        return [record['%d weight weight0' % step].tolist() for step in range(3)]
    usual = weights()
    frozen = {'do': 'grad_req', 'step': 1, 'requests': ['null']}
    assert weights(frozen)[0] == usual[0] == weights(frozen)[1] == weights(frozen)[2] != usual[1]
    assert weights(frozen, drawn={'1 refused 0': 'as it is'}) == usual
    assert weights(dict(frozen, requests=['write']), frozen=['net_weight0'])[0] == weights(frozen=['net_weight0'])[2]
    assert weights({'do': 'file', 'what': 'checkpoint', 'loads': False, 'step': 1},
                   {'do': 'file', 'what': 'checkpoint', 'loads': True, 'step': 2})[0] == usual[0]
    accumulated = [{'do': 'grad_req', 'step': 0, 'requests': ['add']}, {'do': 'backward', 'step': 0}]
    sum_of_two = np.subtract(weights(*accumulated)[0], usual[0]) + np.subtract(usual[0], weights(
        {'do': 'grad_req', 'step': 0, 'requests': ['null']})[0])
    assert np.abs(sum_of_two).max() > 0.001
    for event in ({'do': 'set_data', 'value': 0.5}, {'do': 'initialize', 'value': 0.5}, {'do': 'trainer'}):
        assert weights(dict(event, step=1))[0] == usual[0] and weights(dict(event, step=1))[1] != usual[1]
    for do in ('evaluate', 'abandon', 'zero_grad', 'cast', 'reset_ctx', 'again'):
        event = {'do': do, 'step': 0, 'dtype': 'float64', 'forgets': False}
        assert weights(event) == usual, do


def test_every_function_of_mxnet_is_drawn_or_excused(programs):
    assert 'no entry yet' not in reasons()
    text = table(programs)
    assert 'Dense ' in text and 'never drawn, has a body of its own, which is refused: contrib.cond' in text
    assert all(chance >= 0 for chance, _ in ENTRIES.values())


def test_scripts_have_all_that_they_name(programs):
    for program in programs[::10]:
        check_names(standing_alone(program))


def test_values_have_ties_and_zeros_of_both_signs():
    values = pieces.values_of('ties', (400,), 'float64', 5, 0)
    zeros = values[values == 0]
    assert 100 < len(zeros) < 350 and 0 < np.signbit(zeros).sum() < len(zeros) and len(set(values)) < 12
    assert set(pieces.values_of('ids', (400,), 'int32', 5, 0)) == set(range(5))


def test_dimensions_that_may_have_samples():
    def axes(code):
        return small(statements=statements_of(('op', code, 'data0 weight0')), heads=heads_of('x0'), layers=[],
                     params=[{'name': 'weight0', 'shape': [4, 3]}], plan=DATA_PARALLEL)['heads'][0]['samples']
    assert axes('{0} * {1}') == [[0, 1]]
    assert axes('F.transpose({0} + {1})') == [[1, 1]]
    assert axes('F.softmax({0} + {1}, axis=0)') == [[0, 1]]
    assert axes('F.reverse({0} * {1}, axis=0)') == [] == axes('F.sum({0} * {1}, axis=0)')
    assert axes('F.concat({0}, {0} * {1}, dim=0)') == [[0, 2]]
    assert axes('F.reshape(F.transpose({0} * {1}), shape=(-1,))') == [[0, 3]]
    assert axes('F.reshape({0} * {1}, shape=(-1,))') == [[0, 1]]
    # A value that does not depend on how a sample changes lies as samples move.
    assert axes('F.reshape(F.transpose(({0} > F.zeros_like({0}) + {1}) * 1.0), shape=(-1,))')[0] == [0, 3]


def test_elements_that_are_chosen_among_samples_may_be_cut():
    statements = statements_of(('clip', 'F.clip({0}, 0.0, 0.0)', 'data0'),
                               ('gather_nd', 'F.gather_nd({0}, F.stack({1}, {1}, axis=0))', 'data0 x0'))
    program = small(inputs=[data(4, 3, values='reals')], statements=statements, heads=heads_of('x1'), layers=[],
                    params=[], plan=DATA_PARALLEL)
    assert program['heads'][0]['samples'] is None


def test_networks_that_one_process_does_not_train_are_rejected():
    with pytest.raises(Rejected, match='finite'):
        small(statements=statements_of(('log', 'F.log({0}) * {1}', 'data0 weight0')), heads=heads_of('x0'))


def test_a_process_that_crashes_is_replaced():
    kill = "__import__('os').kill(__import__('os').getpid(), 9) or {0}"
    with Drawer() as drawer:
        assert drawer.examined(dict(small(), statements=statements_of(('crash', kill, 'data0')),
                                    heads=heads_of('x0'))) is None
        assert drawer.examined(small())['heads'] == small()['heads']


def test_records_are_joined_and_differences_seen(tmp_path):
    program = small(calls=1)
    spec = spec_of(program)
    whole = training.run_whole(class_of(program), spec, None, str(tmp_path))
    workers = []
    for rank in range(2):
        samples, record = slice(2 * rank, 2 * rank + 2), {}
        for name, value in whole.items():
            if name.startswith('box of '):
                continue
            if ' output 0/0' in name:
                record[name], record['box of ' + name] = value[samples], np.array([0, 2 * rank, 2 * rank + 1])
            elif ' output ' in name:
                record[name], record['box of ' + name] = value, np.array([-1])
            elif ' gradient ' in name:
                record[name] = value[samples]
            elif rank == 0:
                record[name] = value
        workers.append(record)
    found, problems = pieces.joined(workers, spec)
    assert problems == [] == pieces.differences(found, whole)
    found['1 weight dense0.bias'] = found['1 weight dense0.bias'] + 1e-6
    del found['2 weight weight0']
    assert [step for step, _ in pieces.differences(found, whole)] == [1, 2]
    workers[0]['0 output 0/1'] = workers[0]['0 output 0/1'] + 1
    spec['heads'][0]['samples'] = [[1, 1]]
    words = [words for _, words in pieces.joined(workers, spec)[1]]
    assert '0 output 0/1: worker 1 has other values of the same elements' in words
    assert '0 output 0/0 is cut along dimension 0, which has no samples' in words
    workers[1]['2 refused 0'] = np.array('cast: no')
    assert (2, 'some workers refused an event: cast: no') in pieces.joined(workers, spec)[1]


def test_places_of_samples():
    head = {'shape': [3, 12], 'samples': [[1, 2]]}
    assert pieces.place_of((3, 12), head, slice(0, 1), 3) == [-1]
    assert pieces.place_of((3, 4), head, slice(1, 2), 3) == [1, 2, 3, 8, 9]
    with pytest.raises(ValueError, match='neither'):
        pieces.place_of((2, 4), head, slice(1, 2), 3)


def test_masks_are_looked_at():
    spec = {'steps': 1, 'heads': [{'drawn': {'p': 0.5, 'axes': [1]}}]}
    mask = np.repeat(np.random.RandomState(0).randint(0, 2, (40, 1)), 6, 1) * 2.0
    assert pieces.masks_problems({'0 output 0/0': mask}, spec) == []
    assert pieces.masks_problems({'0 output 0/0': np.zeros((40, 6))}, spec)
    mask[0, -1] = 2 - mask[0, -1]
    assert 'another mask along axis 1' in pieces.masks_problems({'0 output 0/0': mask}, spec)[0][1]


def test_rounding_of_large_steps_is_no_difference(tmp_path):
    statements = statements_of(
        ('exp', 'F.exp({0})', 'data0'),
        ('sign', 'F.sign(F.broadcast_sub({0}, {0}) + ({0} - F.log(F.exp({0}))))', 'x0'))
    program = small(statements=statements, heads=heads_of('x0', 'x1'))
    _, _, slack = reference(program, {}, str(tmp_path))
    assert slack['0 output 0/0'] < 1e-7 and slack['0 output 0/1'] == np.inf
    assert 'noisy(' in network(program, noisy=True) and tolerance_of(program) == 1e-9


def test_a_float32_network_has_the_statements_of_float64():
    with Drawer() as drawer:
        double, single = (drawer.draw(5, 2, dtype) for dtype in session.DTYPES)
    assert {**double, 'dtype': 'float32'} == single
    spec = spec_of(single)
    assert spec['dtype'] == 'float32' and {each['dtype'] for each in spec['inputs']} <= {'float32', 'int32'}
    values, as_double = pieces.batch_of(spec, 0, 0), pieces.batch_of(dict(spec, dtype='float64'), 0, 0)
    assert all(np.array_equal(array, other) for array, other in zip(values, as_double))
    assert {array.dtype.name for array in values} <= {'float32', 'int32'}
    assert 'float64' not in network(single)
    assert small()['dtype'] == 'float64' and tolerance_of(single) == 1e-5


def test_float32_operators_need_no_casts_in_float32_networks():
    code = "F.Cast(F.LRN(F.Cast({0}, dtype='float32'), nsize=3), dtype='float64')"
    assert typed(code, 'float64') == code and typed(code, 'float32') == 'F.LRN({0}, nsize=3)'
    assert typed("F.Cast(F.round({0}), dtype='float64')", 'float32') == "F.Cast(F.round({0}), dtype='float32')"
    assert typed("F.one_hot({0}, depth=4, dtype='float64')", 'float32') == "F.one_hot({0}, depth=4, dtype='float32')"


def test_only_rounding_of_float32_is_no_difference(tmp_path):
    # Samples that are spread by weights, and an output that is 0 but for rounding.
    statements = statements_of(('Dense', 'self.dense0({0})', 'data0'), ('tanh', 'F.tanh({0})', 'x0'),
                               ('op', '({0} * 3.0 - {0} - {0} * 2.0) > 0.0', 'x1'))
    program = small(statements=statements, heads=heads_of('x1', 'x2'), params=[], plan=DATA_PARALLEL, dtype='float32')
    whole, others, slack = reference(program, {}, str(tmp_path))
    assert whole['0 output 0/0'].dtype == 'float64' and {each['0 output 0/0'].dtype.name for each in others} == {
        'float32'}
    assert 0 < slack['0 output 0/0'] < 1e-4 and slack['0 output 0/1'] == np.inf
    single = {name: value.copy() for name, value in others[0].items()}
    assert pieces.differences(single, whole, (), slack, tolerance_of(program)) == []
    single['1 weight dense0.weight'][0, 0] += 1e-3
    single['0 output 0/1'] = 1 - single['0 output 0/1']
    assert [words.split('[')[0] for _, words in pieces.differences(single, whole, (), slack, tolerance_of(program))
            ] == ['1 weight dense0.weight']


def test_a_sum_of_scaled_products_may_be_rounding(tmp_path):
    # The operator multiplies queries by the root of 1/2: products with opposite signs may not cancel in another order.
    code = "F.Cast(F.contrib.interleaved_matmul_selfatt_qk(F.Cast({0}, dtype='float32'), heads=1), dtype='float64')"
    cast = "F.Cast(F.Cast({0}, dtype='float32'), dtype='float64')"
    statements = statements_of(
        ('scores', code, 'data0', {'rounds': 'float32', 'scales': True}), ('op', '{0} != 0.0', 'x0'),
        ('Cast', cast, 'data0', {'rounds': 'float32'}), ('op', '{0} != 0.0', 'x2'))
    program = small(inputs=[data(4, 3, 6)], params=[], layers=[], statements=statements, plan=DATA_PARALLEL,
                    heads=heads_of('x0', 'x1', 'x3'))
    _, _, slack = reference(program, {}, str(tmp_path))
    assert slack['0 output 0/0'] < 1e-3 and slack['0 output 0/1'] == np.inf and slack['0 output 0/2'] == 0


def test_copies_of_a_value_may_differ_by_rounding():
    spec = {'heads': [{'shape': [2, 2], 'samples': [[0, 1]]}], 'inputs': [], 'samples': 2}
    box = np.array([-1])
    records = [{'0 output 0/0': np.ones((2, 2)) * factor, 'box of 0 output 0/0': box} for factor in (1, 1 + 1e-6)]
    assert len(pieces.joined(records, spec)[1]) == 1
    assert pieces.joined(records, spec, 1e-5)[1] == [] == pieces.joined(records, spec, 1e-12, {'0 output 0/0': 1})[1]


def test_a_failing_network_is_made_small():
    events = [{'do': 'evaluate', 'step': 0, 'place': 'after'}, {'do': 'zero_grad', 'step': 1, 'place': 'between'},
              {'do': 'set_data', 'step': 2, 'place': 'before', 'value': 0.25,
               'params': ['net_weight0', 'net_dense0_bias', 'net_dense0_weight']}]

    def fails(program):
        # A dense layer after anything, with a splits plan that names x2, and its bias is set.
        return any('net_dense0_bias' in event.get('params', ()) for event in program['events']) and any(
            statement['op'] == 'Dense' for statement in program['statements']) and (
            'x2' in program['plan'].get('splits', {}))
    with Drawer() as drawer:
        reduced = drive({1: shrinking.shrink(small(events=events), drawer.examined)},
                        lambda places: [fails(candidate) for _, candidate in places])[1]
    assert [statement['op'] for statement in reduced['statements']] == ['Dense'] and len(reduced['heads']) == 1
    assert list(reduced['plan']['splits']) == ['x2'] and reduced['workers'] == 3
    assert (reduced['steps'], reduced['calls'], reduced['input_grad'], reduced['on_store']) == (1, 1, False, None)
    assert reduced['params'] == [] and reduced['inputs'][0]['values'] == 'reals'
    assert reduced['events'] == [dict(events[2], step=0, params=['net_dense0_bias'])]


def test_several_failures_shrink_in_the_same_jobs(monkeypatch):
    jobs = []

    def run_all(programs):
        jobs.append(len(programs))
        return [Outcome('differs' if any(each['op'] == 'Dense' for each in program['statements']) else 'same')
                for program in programs]
    monkeypatch.setattr(runner, 'run_all', run_all)
    with Drawer() as drawer:
        shrunk = session.shrink_all({1: small(), 2: small(plan=DATA_PARALLEL)},
                                    {1: Outcome('differs'), 2: Outcome('differs')}, drawer)
    assert [len(program['statements']) for program in shrunk.values()] == [1, 1]
    assert len(jobs) < 30 and max(jobs) > 10


def test_the_command_line():
    assert {session.dtype_for(seed, 'both') for seed in range(9)} == set(session.DTYPES)
    assert session.dtype_for(1, 'float32') == 'float32'
    args = cli.parse(['networks', '--programs', '7', '--ranks', '2,4'])
    assert args.programs == 7 and [session.workers_of(seed, args.ranks) for seed in range(3)] == [2, 4, 2]
    for wrong in ('1', 'a,b', ''):
        with pytest.raises(SystemExit):
            cli.parse(['--ranks', wrong])
