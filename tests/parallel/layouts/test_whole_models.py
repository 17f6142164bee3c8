"""Whole models go in and out of networks that are split: files of gluon, exports, checkpoints, and memory."""
import json
import shutil
import sys

import mxnet as mx
import numpy as np
import pytest
from lab.jobs import run_job
from mxnet import gluon

from . import BODIES

BODY = BODIES / 'whole_models.py'
CASES = ('sgd', 'adam', 'ftml', 'sgd/on-store')
PLANS = ('data', 'trick', 'grid', 'domain', 'layers')


def job(launcher, workers, directory, part, *args):
    """Run the body; what it found, by rank."""
    result = run_job(BODY, launcher, workers=workers, timeout=300,
                     args=['--part', part, '--directory', directory, *args]).ok()
    assert sorted(result.results) == list(range(workers))
    return [result.results[rank]['found'] for rank in range(workers)]


@pytest.fixture(scope='module')
def directory(tmp_path_factory):
    """The directory of this module's files."""
    return tmp_path_factory.mktemp('whole')


@pytest.fixture(scope='module')
def alone(directory):
    """The report of a process without a plan."""
    return job('none', 1, directory, 'alone')[0]


@pytest.fixture(scope='module')
def split(alone, directory):
    """Four workers, each plan; one of them with all optimizers."""
    found = job('horovodrun', 4, directory, 'save', '--cases', 'sgd', '--plans', ','.join(PLANS))
    for one, more in zip(found, job('horovodrun', 4, directory, 'save', '--cases', ','.join(CASES[1:]), '--plans',
                                    'layers')):
        one.update(more)
    return found


def near(directory, case, one, other):
    """Two files of parameters are the same but for rounding."""
    expected, found = (mx.nd.load(str(directory / case.replace('/', '-') / ('%s.params' % name)))
                       for name in (one, other))
    assert sorted(found) == sorted(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype == np.float64
        np.testing.assert_allclose(found[name].asnumpy(), array.asnumpy(), rtol=0, atol=1e-12, err_msg=name)


def outputs(expected, found, name):
    """Each worker's samples of the outputs are those of one process."""
    for one in found:
        low, high = one[name]['samples']
        np.testing.assert_allclose(one[name]['outputs'], expected[low:high], rtol=0, atol=1e-12)


@pytest.mark.parametrize('case, plan', [('sgd', plan) for plan in PLANS] + [(case, 'layers') for case in CASES[1:]])
def test_files_are_those_of_the_unsplit_network(alone, split, directory, case, plan):
    """Saved in the middle of training that equals one process, before and after going back to a checkpoint."""
    near(directory, case, 'alone', plan)
    near(directory, case, 'end', plan + '-end')
    near(directory, case, 'end', plan + '-again')
    outputs(alone[case]['outputs'], split, '%s/%s' % (case, plan))


@pytest.mark.parametrize('plan', PLANS)
def test_an_export_is_the_unsplit_network(alone, split, directory, plan):
    folder = directory / 'sgd'
    near(directory, 'sgd', 'alone-0002', plan + '-0002')
    symbols = [json.loads((folder / ('%s-symbol.json' % name)).read_text()) for name in ('alone', plan)]
    for symbol in symbols:
        for node in symbol['nodes']:
            # The third number counts how often a symbol of a running average was used.
            node['inputs'] = [entry[:2] for entry in node['inputs']]
    assert symbols[0] == symbols[1]
    net = gluon.SymbolBlock.imports(str(folder / (plan + '-symbol.json')), ['data'],
                                    str(folder / (plan + '-0002.params')))
    sys.path.insert(0, str(BODIES))
    try:
        import whole_models
    finally:
        sys.path.remove(str(BODIES))
    np.testing.assert_allclose(net(whole_models.batch(99, 'float64')[0]).asnumpy(), alone['sgd']['outputs'], rtol=0,
                               atol=1e-12)


@pytest.mark.parametrize('launcher, workers, plans, sources', [
    ('horovodrun', 2, 'layers,trick,grid', 'grid,alone,layers'), ('none', 1, ',,', 'domain,trick,layers')])
def test_training_goes_on_under_another_plan(alone, split, directory, launcher, workers, plans, sources):
    """Two workers, or one without a plan, load the files of four and of one."""
    label = 'on%d' % workers
    found = job(launcher, workers, directory, 'resume', '--cases', 'sgd', '--plans', plans, '--sources', sources,
                '--label', label)
    for source in sources.split(','):
        near(directory, 'sgd', 'end', '%s-%s' % (source, label))
        outputs(alone['sgd']['outputs'], found, 'sgd/' + source)


@pytest.mark.parametrize('launcher, workers, plan, source', [
    ('launch.py', 2, 'trick', 'layers'), ('launch.py', 4, 'domain', 'alone'), ('none', 1, '', 'layers')])
def test_state_of_all_optimizers_goes_along(alone, split, directory, launcher, workers, plan, source):
    label = 'all-on%d' % workers
    job(launcher, workers, directory, 'resume', '--cases', ','.join(CASES[1:]), '--plans', plan, '--sources', source,
        '--label', label)
    for case in CASES[1:]:
        near(directory, case, 'end', '%s-%s' % (source, label))


def test_what_fails_on_worker_0_is_raised_on_all(tmp_path):
    result = run_job(BODY, 'horovodrun', workers=2, args=['--part', 'faults', '--directory', tmp_path], timeout=120)
    # In the end worker 0 calls alone.
    result.failed('worker 1 ended its script after')
    first, second = (result.results[rank]['found'] for rank in (0, 1))
    assert first == second
    misfit, failed, refused = [True, True, False], [False, False, True], [False, True, False]
    errors = first['errors']
    for what, kinds, words in (
            ('missing', misfit, "Parameter 'output.bias' is missing in file"),
            ('extra', misfit, "Parameter 'output.more' loaded from file"),
            ('shape', misfit, 'shape incompatible expected (8, 3, 3, 3) vs saved (4, 3, 3, 3)'),
            ('dtype', misfit, 'Set cast_dtype=True'), ('none', failed, 'load_parameters failed on worker 0: FileNotF'),
            ('no file', failed, 'is not a file of parameters'),
            ('folder', failed, 'save_parameters failed on worker 0: '),
            ('exported folder', failed, 'export failed on worker 0: '), ('states', refused, 'mxhybrid.checkpoint.save'),
            ('states back', refused, 'mxhybrid.checkpoint.save'), ('around', refused, 'of what parallelize returned'),
            ('around back', refused, 'of what parallelize returned'), ('full', failed, 'File too large'),
            ('full checkpoint', failed, 'File too large')):
        assert errors[what][:3] == kinds and words in errors[what][3], (what, errors[what])
    assert errors['allowed'] == errors['ignored'] == errors['cast'] == ''
    assert set(first['kept']) - set(first['again']) == {'features.6.weight', 'features.6.bias'} or \
        set(first['kept']) - set(first['again']) == {'twin.weight', 'twin.bias'}
    assert first['updates'] == 4
    assert first['same'] and first['checkpoints'] == ['00000001-step-1']
    assert not [name for name in first['files'] if 'part' in name or name in ('alone.params', 'faults-never.params')]


@pytest.mark.parametrize('wire', ['lane', 'ps-lite'])
def test_pieces_may_be_of_any_size(tmp_path, wire):
    result = run_job(BODIES / 'uneven_pieces.py', 'horovodrun', workers=2, timeout=60, args=[tmp_path],
                     env={'MXHYBRID_WIRE': wire}).ok()
    for rank in range(2):
        assert result.results[rank] == {'same': [True] * 10, 'held': [513, 4096]}


def test_memory_shrinks(tmp_path):
    """A dense layer of 400 MB on four workers, each of which has 100 MB of it, of its gradient and of its momentum."""
    try:
        result = run_job(BODIES / 'whole_memory.py', 'horovodrun', workers=4, timeout=200, args=[tmp_path]).ok()
    finally:
        shutil.rmtree(str(tmp_path))  # 1.2 GB
    for rank, values in result.results.items():
        layer, peak, stays = values['layer'], values['peak'], values['stays']
        print(rank, peak, stays, values['activations'], values['whole'])
        # Weight and gradient; the weight once more while it is initialised, and on worker 0 the whole for a moment.
        assert stays['parallelize'] < 0.6 * layer
        assert peak['parallelize'] < (1.85 if rank == 0 else 0.85) * layer
        # One process has three times the layer.
        assert stays['step'] < 0.9 * layer
        assert peak['next step'] < 0.9 * layer
        # Whole weights and state pass through worker 0 in pieces.
        for what in ('save_parameters', 'save', 'load', 'load_parameters'):
            assert peak[what] < (1.3 if rank == 0 else 0.9) * layer, what
        before, *after = values['losses']
        assert after[0] < before and after == [after[0]] * 3
        assert values['activations'] < 0.6 * result.results[0]['whole']
