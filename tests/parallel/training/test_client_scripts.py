"""Scripts and libraries that were written for one process, or for Horovod, train as one process or say why not."""
import numpy as np
import pytest
from lab.jobs import run_job

from ...helpers.turns import slow
from . import BODIES

BODY = BODIES / 'client_scripts.py'
REPLACED = {'MXHYBRID_REPLACE_LOCAL_STORES': '1'}
GIVEN = ['device', 'none', 'nothing', 'object']


@pytest.fixture(scope='module')
def alone(tmp_path_factory):
    """The results of one process, in which the setting changes nothing."""
    folder = tmp_path_factory.mktemp('alone') / 'checkpoints'
    result = run_job(BODY, 'none', args=[folder], env=REPLACED, timeout=60).ok()
    assert 'hybrid' not in result.results[0]['stores'].values() and 'allreduce_grads' not in result.output
    return result.results[0]


@pytest.mark.parametrize('launcher, args, env', [
    ('horovodrun', ['--first'], REPLACED), ('launch.py', ['--twice'], REPLACED), ('horovodrun', ['--twice'], {}),
    slow('horovodrun', [], {'MXHYBRID_ROW_TRANSPORT': 'ps-lite'})])
def test_scripts_and_libraries(alone, launcher, args, env, tmp_path):
    args = [tmp_path / 'checkpoints', *args]
    result = run_job(BODY, launcher, workers=2, args=args, env=env, timeout=100).ok()  # after hvd.shutdown(), too
    workers = [result.results[rank] for rank in range(2)]
    assert workers[0]['files'] == alone['files'] and len(alone['files']) == 7
    assert workers[0]['written'] > 12 and workers[1]['written'] == 0
    np.testing.assert_array_equal(workers[0]['estimated'], workers[1]['estimated'])
    for values in workers:
        for name in GIVEN if env == REPLACED else []:
            assert values['stores'][name] == 'hybrid'
            np.testing.assert_allclose(values[name], alone[name], rtol=1e-6)
        for name in ('horovod', 'clipped', 'first', 'first again'):
            np.testing.assert_allclose(values[name], alone[name], rtol=1e-6)
        assert values['horovod alone']
        for words in ('already serves another Trainer', 'first_weight', 'a store of its own'):
            assert words in values['shared']
    if env != REPLACED:
        assert 'hybrid' not in workers[0]['stores'].values()
    if launcher == 'horovodrun' and '--first' not in args:
        # Horovod's workers met at a server of worker 0, and not at horovodrun's.
        assert workers[0]['met_at'] == workers[1]['met_at'] and workers[0]['met_at']['record'] > 0
        assert workers[0]['launchers_port'] and workers[0]['met_at']['port'] != workers[0]['launchers_port']
    if launcher == 'launch.py':
        assert all(values['process_set'].startswith('hvd.add_process_set(): launch.py starts no server')
                   for values in workers)
    if '--twice' in args:
        assert result.output.count('second start: ' + (
            '2 workers' if launcher == 'horovodrun' else 'hvd.init() after hvd.shutdown(): launch.py starts no')) == 2
    assert not np.allclose(workers[0]['local'], workers[1]['local'])
    assert result.output.count('update() was called without allreduce_grads()') == 2  # once on each worker


def test_horovod_is_ended_too_early(tmp_path):
    body = tmp_path / 'body.py'
    body.write_text('import mxnet as mx, mxhybrid\nimport horovod.mxnet as hvd\nstore = mxhybrid.create()\n'
                    'hvd.shutdown()\nstore.init("w", mx.nd.ones(3))\n')
    run_job(body, 'horovodrun', workers=2, timeout=60).failed(
        'the script has called hvd.shutdown(), but this call needs Horovod')
