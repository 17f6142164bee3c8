"""Layers split over workers: weights and losses are those of one process, in real jobs, under both launchers."""
import json
import re

import pytest
from lab.jobs import run_job

from ...helpers.joint_jobs import body, run_together
from . import BODIES

BODY = BODIES / 'layouts.py'

# A test that starts a job of several bodies waits for all of them.
pytestmark = pytest.mark.timeout(600)

DATA = {'plan': 'data_parallel'}
TRICK = {'plan': 'one_weird_trick'}


def pipeline(stages, micro_batches, inside=None, schedule='1f1b'):
    return {'plan': 'pipeline', 'stages': stages, 'micro_batches': micro_batches, 'inside': inside,
            'schedule': schedule}


def grid(model=1, batch=1, domain=()):
    return {'plan': 'grid', 'model': model, 'batch': batch, 'domain': list(domain)}


def megatron(model, batch=1, sequence=False):
    return {'plan': 'megatron', 'model': model, 'batch': batch, 'sequence': sequence}


CHANNELS = {'conv*_fwd': {'channels': 4}, 'dense0_fwd': {'partials': 4}}
VOCABULARY = {'embedding*': {'partials': 4}, 'dense*': {'channels': 4}, '*log_softmax*': {'channels': 4},
              '*pick*': {'partials': 4}}
PLACES = {'embedding*': {'ranks': [0]}, '*lstm*': {'ranks': [3]}, 'dense*': {'channels': 2, 'ranks': [2, 1]}}


def found_by(result, workers, networks):
    """Return the reports of all workers for every plan, by the name of the network that is trained."""
    assert sorted(result.results) == list(range(workers))
    return {name: [result.results[rank]['outcomes'][name] for rank in range(workers)] for name in networks}


def trained(networks, launcher='horovodrun', workers=4, timeout=200, env=None):
    """Train networks in a job of their own; return what `found_by` does."""
    result = run_job(BODY, launcher, workers=workers, args=[json.dumps(networks)], timeout=timeout, env=env).ok()
    return found_by(result, workers, networks)


def check(results, plans, error=1e-10):
    for worker_results in results:
        assert len(worker_results) == len(plans)
        for plan, outcome in zip(plans, worker_results):
            assert outcome['error'] < error, (plan, outcome)
            assert outcome['losses'] < error * 100, (plan, outcome)
            assert plan in (DATA, again(DATA, 'attention')) or outcome['redistributions'] > 0, plan


def again(plan, *patterns):
    """Return a plan with which blocks are computed again in the backward pass."""
    return {**plan, 'recompute': list(patterns)}


CNN = {'cnn': {'net': 'cnn', 'plans': [
    DATA, TRICK, grid(2, 2), grid(4), grid(domain=(4,)), grid(domain=(2, 2)), grid(batch=2, domain=(1, 2)), CHANNELS,
    1, 2]}}
POOLED = [DATA, grid(domain=(4,)), grid(domain=(2, 2)), grid(batch=2, domain=(2,)), {'pool*': {'partials': 3}}, 1, 2]
WORDS = {'plans': [DATA, TRICK, grid(2, 2), VOCABULARY, PLACES, 1, 2], 'optimizer': 'adam',
         'settings': {'learning_rate': 0.05}}
#: The trainings of one job, one after the other, each as a job of its own would make it.
OTHERS = {
    'a language model': {'net': 'language_model', **WORDS}, 'cells': {'net': 'cells', **WORDS},
    'a transformer': {'net': 'gpt', 'plans': [DATA, megatron(4), megatron(2, 2), megatron(4, sequence=True), megatron(
        2, 2, True), {'attention_*': {'heads': 2, 'samples': 2}}, 1, pipeline(2, 4, megatron(2)), pipeline(
            2, 2, megatron(2, sequence=True)), pipeline(4, 8)]},
    'a mixture of experts': {'net': 'mixture', 'plans': [
        DATA, megatron(4), megatron(2, 2, True), again(megatron(4), 'experts'), 1, pipeline(2, 4, megatron(2))]},
    'sums in two steps': {'net': 'gpt', 'two_steps': True, 'plans': [
        megatron(4), {'attention_*': {'heads': 4}}, again(megatron(4), 'attention', 'dense*')]},
    'sums in two steps in float32': {'net': 'dense', 'two_steps': True, 'dtype': 'float32', 'plans': [
        {'dense0_fwd': {'partials': 3, 'ranks': [0, 1, 2]}, 'dense1_fwd': {'channels': 4}}]},
    'recomputed': {'net': 'gpt', 'plans': [
        again(DATA, 'attention'), again(megatron(2, 2, True), '*'), again(megatron(4), 'attention', 'dense*'),
        again(pipeline(2, 4, megatron(2)), 'attention', 'dense*'),
        again(pipeline(2, 4, megatron(2), 'gpipe'), 'attention', 'dense*')], 'optimizer': 'adam',
        'settings': {'learning_rate': 0.05}},
    'recomputed with joint statistics': {'net': 'cnn', 'plans': [again(grid(domain=(2, 2)), 'conv*', 'batchnorm*')]},
    'recomputed gradients that add up': {'net': 'plain', 'plans': [again(grid(2, 2), '*')], 'grad_req': 'add',
                                         'accumulate': 2, 'steps': 3},
    'recomputed in float32': {'net': 'plain', 'plans': [again(grid(domain=(4,)), '*')], 'dtype': 'float32'},
    'pooled': {'net': 'pooled', 'plans': POOLED}, 'averaged': {'net': 'averaged', 'plans': POOLED},
    'fewer samples than workers': {'net': 'cnn', 'batch': 2, 'plans': [
        grid(domain=(4,)), grid(domain=(2, 2)), grid(batch=2, domain=(2,)), 1]},
    'samples that are not shared evenly': {'net': 'cnn', 'batch': 7, 'plans': [DATA, grid(2, 2), 1]},
    'gradients that add up': {'net': 'plain', 'plans': [grid(2, 2), grid(domain=(4,))], 'grad_req': 'add',
                              'accumulate': 2, 'steps': 3},
    'operators without a rule': {'net': 'unruly', 'plans': [DATA, TRICK, grid(2, 2), 1]},
    'float32': {'net': 'plain', 'plans': [DATA, TRICK, grid(2, 2), grid(domain=(4,)), 1], 'dtype': 'float32'},
    'words in float32': {'net': 'language_model', 'plans': [VOCABULARY, 2], 'dtype': 'float32', 'steps': 3},
    'the store updates': {'net': 'plain', 'plans': [grid(2, 2), TRICK], 'update_on_kvstore': True},
    'clipped by the norm': {'net': 'plain', 'plans': [DATA, TRICK, grid(2, 2)], 'clip': 0.5, 'steps': 3,
                            'dtype': 'float32'},
}
RESNET = {'resnet': {'net': 'resnet', 'plans': [TRICK, grid(domain=(4,)), 1], 'steps': 3, 'settings': {
    'learning_rate': 0.01, 'momentum': 0.9, 'wd': 1e-4}}}
#: Plans for two workers.
HALVES = {'cnn': {'net': 'cnn', 'plans': [TRICK, grid(2), grid(domain=(2,)), 3]},
          'mixture': {'net': 'mixture', 'plans': [megatron(2)]}}


@pytest.fixture(scope='module')
def four():
    """A job of four workers with all bodies that need as many; the last one kills worker 2 in a redistribution."""
    killed = {'cnn': {'net': 'cnn', 'plans': [grid(domain=(4,))], 'kill': [2, 2]}}
    return run_together({
        'cnn': body(BODY, json.dumps(CNN)), 'others': body(BODY, json.dumps(OTHERS)),
        'resnet': body(BODY, json.dumps(RESNET)), 'tables': body(BODIES / 'tables_and_layers.py'),
        'uses': body(BODIES / 'layout_uses.py'), 'killed': body(BODY, json.dumps(killed))},
        'horovodrun', workers=4, timeout=500, ends_badly=['ends, because worker 2 '])


@pytest.fixture(scope='module')
def two():
    """A job of two workers; in the last body worker 1 makes fewer steps."""
    shorter = {'dense': {'net': 'dense', 'plans': [grid(2)], 'end': [2, 1]}}
    return run_together({
        'halves': body(BODY, json.dumps(HALVES)), 'statistics': body(BODIES / 'local_statistics.py'),
        'custom': body(BODIES / 'custom_operators.py'), 'scaled': body(BODIES / 'scaled_layouts.py'),
        'bad': body(BODIES / 'bad_layouts.py'), 'actions': body(BODIES / 'script_actions.py'),
        'shorter': body(BODY, json.dumps(shorter))},
        'horovodrun', workers=2, timeout=200, ends_badly=['give every worker the same number of steps'])


@pytest.fixture(scope='module')
def others(four):
    """The reports of all workers about OTHERS."""
    return found_by(four['others'], 4, OTHERS)


@pytest.mark.parametrize('launcher, env', [('together', {}), ('horovodrun', {'MXHYBRID_ROW_TRANSPORT': 'ps-lite'}),
                                           ('launch.py', {})], ids=['horovodrun', 'without the lane', 'launch.py'])
def test_convolutions_and_dense_layers(request, launcher, env):
    if launcher == 'together':
        outcomes = found_by(request.getfixturevalue('four')['cnn'], 4, CNN)['cnn']
    else:
        outcomes = trained(CNN, launcher, env=env)['cnn']
    check(outcomes, CNN['cnn']['plans'])
    # Each worker holds a part of the weights of dense layers.
    whole = outcomes[0][0]['held']
    assert all(one[3]['held'] < 0.6 * whole for one in outcomes)


@pytest.mark.parametrize('name', OTHERS)
def test_others(others, name):
    given = OTHERS[name]
    check(others[name], given['plans'], 1e-5 if given.get('dtype') == 'float32' else 1e-10)


@pytest.mark.parametrize('name', ['a transformer', 'a mixture of experts'])
def test_each_worker_has_its_part_of_a_transformer(others, name):
    whole = others[name][0][0]['held']
    assert all(outcome['held'] < 0.32 * whole for found in others[name] for outcome in (found[1], found[3]))


@pytest.mark.parametrize('name', ['pooled', 'averaged'])
def test_whole_images_are_averaged_in_parts(others, name):
    # Sums of 8 samples and 16 channels move, not images: to the workers that read them, and their gradients back.
    assert all(one[1]['pooling'] <= 2 * 3 * 8 * 16 * 8 for one in others[name])


@pytest.mark.parametrize('name', HALVES)
def test_two_workers(two, name):
    check(found_by(two['halves'], 2, HALVES)[name], HALVES[name]['plans'])


def test_resnet(four):
    check(found_by(four['resnet'], 4, RESNET)['resnet'], RESNET['resnet']['plans'])


@pytest.mark.slow
def test_alexnet():
    given = {'alexnet': dict(RESNET['resnet'], net='alexnet')}
    check(trained(given)['alexnet'], given['alexnet']['plans'])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize('net', ['inception', 'densenet'])
def test_more_of_the_zoo(net):
    """Statistics over few values make rounding grow: the rate is small."""
    plans = [DATA, grid(domain=(4,)), 1]
    check(trained({net: {'net': net, 'plans': plans, 'steps': 2, 'batch': 8, 'settings': {
        'learning_rate': 1e-4, 'momentum': 0.9, 'wd': 1e-4}}}, timeout=1000)[net], plans)


def test_a_split_network_follows_its_parameters(two):
    """A script may re-initialise, freeze, set or load them between steps."""
    for rank in range(2):
        differences = two['actions'].results[rank]['differences']
        assert len(differences) > 100
        assert not {name: apart for name, apart in differences.items() if not apart < 1e-5}


def test_statistics_of_each_worker_by_itself(two):
    result = two['statistics']
    assert all(result.results[rank]['apart'] < 1e-13 for rank in range(2))
    assert abs(result.results[0]['mean'] - result.results[1]['mean']) > 1e-6


def test_custom_operators_need_arrays_of_their_own(two):
    for rank in range(2):
        distances = two['custom'].results[rank]['distances']
        assert len(distances) == 20 and max(distances.values()) == 0, distances


def test_an_overflow_on_one_worker_ends_all_steps(two):
    result = two['scaled']
    for rank in range(2):
        one = result.results[rank]
        assert one['kept'] and one['finite']
        assert one['scales'][0] == one['scales'][1] == 2 * one['scales'][2] == 2 * one['scales'][3]


def test_tables_stay_on_servers_beside_split_layers(four):
    result = four['tables']
    for rank in range(4):
        assert result.results[rank]['parts'] == 4  # weights and biases of two dense layers
        assert result.results[rank]['worst'] < 1e-12
        # Two workers each have half of 16 x 16 + 16 weights; and workers 0 and 2 the last layer's 16 + 1.
        held = ('2 of 4 here, 1.1 kB', 2) if rank % 2 else ('4 of 4 here, 1.2 kB', 4)
        assert result.results[rank]['report_line'] == (
            'split weights: %s of 2.3 kB; gradients that are summed: %d among 2 workers' % held)


#: Words of messages about optimizers that need whole weights, and about differences between workers.
WORDS_OF_ERRORS = {
    'lamb': ['use an optimizer that updates element by element'],
    'nadam': ['use an optimizer that updates element by element'],
    'other units': ['worker 0 has parameter 0 (net_dense0_weight) with shape [32, 3]', 'worker 1 has parameter 0',
                    'shape [64, 3]'],
    'another activation': ['operator 4 (net_dense1_weight)', 'operator 4 (net_dense0_tanh_fwd)'],
    'no bias': ['parameter 1 (net_dense0_bias)', 'parameter 1 (net_dense1_weight)', 'shape [4, 32]'],
    'another type': ['input (data)', 'dtype float32', 'dtype float16'],
    'another grad_req': ['parameter 0 (net_dense0_weight)', 'grad_req write', 'grad_req add'],
    'other data': ['input (data)', 'shape [8, 3]', 'shape [16, 3]'],
    'input_grad on one': ['input_grad False', 'input_grad True'],
    'other plans': ['split of operator', 'worker 0 has', 'worker 1 has'],
    'other blocks': ['recompute', 'worker 0 has', 'worker 1 has'],
    'for_data of others': ['for_data: workers have different networks', 'shape [4, 3]', 'shape [6, 3]'],
}


def test_impossible_input_is_refused_on_every_worker(two):
    result = two['bad']
    for rank in range(2):
        errors = result.results[rank]['errors']
        assert all(errors.values()), [name for name, text in errors.items() if not text]
        assert 'is for 15 workers, but the job has 2: choose factors whose product is 2' in errors['another product']
        assert 'call initialize() first, or give parallelize init=' in errors['no values']
        assert 'init=3 is not an initializer: give an initializer' in errors['no initializer']
        assert "init='xaviar' is not an initializer: give an initializer" in errors['no name of an initializer']
        assert 'is for 3 workers, but the job has 2' in errors['other model groups']
        assert 'a pipeline of 3 stages on 2 workers: give at most 2 stages' in errors['too many stages']
        assert ('3 micro-batches do not divide the joint batch of 8 samples: give one of 1, 2, 4, 8'
                in errors['other micro-batches'])
        assert "'rnn*' of stage 1 matches no operator" in errors['no operator of a stage']
        assert 'does not have each sample once' in errors['no samples']
        assert 'a pipeline returns no gradients of its inputs' in errors['gradients of inputs']
        assert 'divides no weight: ' in errors['no attention']
        assert 'finds none of these in the network: give another plan' in errors['no attention']
        assert 'none of the operators that it matches has heads of attention' in errors['no heads']
        assert 'has 4 heads, which heads=3 does not divide: give one of 1, 2, 4' in errors['other heads']
        assert 'has no dimension height: it has samples, channels' in errors['no such dimension']
        assert 'give distinct ranks from 0 to 1' in errors['no such rank']
        assert "take 'joint'" in errors['statistics']
        assert "recompute: 'rnn*' matches no block" in errors['no block']
        assert "recompute=3: give a pattern of names of blocks, for example 'layer*'" in errors['no pattern']
        assert 'net_dense0_weight would have shape (32, 24), not (32, 3)' in errors['weights of other data']
        for name, words in WORDS_OF_ERRORS.items():
            for word in words:
                assert word in errors[name], (name, errors[name])
        assert 'have shape (4, 3, 12, 12)' in errors['another batch']
        assert result.results[rank]['shape'] == [4, 10]
        assert result.results[rank]['warnings'] == [
            'parallelize: the plan, one weird trick, divides no weight of this network: each worker holds all of them: '
            'give another plan, or data_parallel()']
        assert 'the plan, one weird trick, divides no weight' in result.results[rank]['layouts']
    assert 'worker 0 cannot' in result.results[1]['errors']['one worker alone']


@pytest.fixture(scope='module')
def uses(four):
    """The reports of all workers about ways in which scripts use a network that is split."""
    return [four['uses'].results[rank] for rank in range(4)]


def test_used_networks_have_the_weights_of_one_process(uses):
    for one in uses:
        assert one['differences'] and all(apart < 1e-10 for apart in one['differences'].values()), one['differences']


@pytest.mark.parametrize('name, message', [
    ('input_grad', 'give parallelize input_grad=True'),
    ('input_grad of what is computed', 'or data.detach() to the network'),
    ('another store', "give the Trainer kvstore='hybrid'"),
    ('a Trainer of before', 'make the Trainer of its collect_params()'),
    ('the whole network', 'use the network that parallelize returned'), ('split twice', 'use its for_data()'),
    ('cast', 'cast it to float32 before parallelize'),
    ('another type', 'data has type float32, but float64 was planned'), ('no NDArray', 'data is a ndarray'),
    ('another shape', 'take net.for_data(shape)'), ('too few samples', 'give a joint batch with more samples'),
    ('other weights', "does not take data of shapes {'data': (8, 3, 16, 16)}"), ('no shape', 'data=5'),
    ('another order', 'run backward passes in the order of the forward passes'),
    ('a second pass', 'all those of one call (retain_graph=True) before the next call')])
def test_mistakes_of_a_script_are_named(uses, name, message):
    for one in uses:
        assert message in one['errors'][name], one['errors'][name]


def test_redistributions_in_the_report_of_the_store(uses):
    for one in uses:
        assert re.fullmatch(r'redistributions between layers: [1-9]\d* in a step, forwards and backwards, in which '
                            r'this worker sends [\d.]+ kB', one['report_line']), one['report_line']


def test_redistributions_in_traces(tmp_path):
    trace = tmp_path / 'trace.json'
    run_job(BODY, 'horovodrun', workers=2, timeout=100, env={'MXHYBRID_TRACE': str(trace)}, args=[json.dumps(
        {'plain': {'net': 'plain', 'plans': [TRICK], 'steps': 2}})]).ok()
    events = [event for event in json.loads(trace.read_text()) if event.get('cat') == 'redistribution']
    names = {event['name'] for event in events}
    assert any(name.endswith(', backward') for name in names) and any('backward' not in name for name in names)
    begun = [event for event in events if event['ph'] == 'b']
    assert len(begun) == len([event for event in events if event['ph'] == 'e']) > 0
    assert any(event['args']['bytes'] > 0 for event in begun)


def test_a_worker_that_makes_fewer_steps_ends_the_others(two):
    """Let worker 1 stop early; all weights are split, so that no step calls the store."""
    assert 'worker 1 ended its script after' in two['shorter'].output
    assert 'give every worker the same number of steps' in two['shorter'].output


def test_a_worker_that_dies_while_redistributing_is_named(four):
    result = four['killed']
    causes = [line.partition('ends, because ')[2] for line in result.output.splitlines() if 'ends, because' in line]
    assert causes
    assert all(cause.startswith('worker 2 ') for cause in causes), result.output
