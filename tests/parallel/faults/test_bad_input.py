"""Bad input gets a clear error on every rank that gives it, before anything is sent."""
import numpy as np
import pytest
from lab.jobs import run_job

from ...helpers.turns import slow
from . import BODIES

BODY = BODIES / 'bad_input.py'
DISAGREE = BODIES / 'disagree.py'


@pytest.mark.parametrize('launcher, workers', [('none', None), ('horovodrun', 2), ('launch.py', 2)])
def test_wrong_calls(launcher, workers):
    result = run_job(BODY, launcher, workers=workers, timeout=90).ok()
    count = workers or 1
    assert sorted(result.results) == list(range(count))
    for values in result.results.values():
        wrong = {name: said for name, said in values['said'].items() if said}
        assert not wrong
        assert len(values['said']) > 20
        np.testing.assert_array_equal(values['dense'], np.full((3, 2), count))
        np.testing.assert_array_equal(values['rows'][0], [count, count])
        np.testing.assert_array_equal(values['rows'][1:], np.zeros((len(values['rows']) - 1, 2)))


@pytest.mark.parametrize('environment, words', [
    ({'MXHYBRID_PARTITIONS': '0'}, ['MXHYBRID_PARTITIONS', "'0'", 'at least 1']),
    slow({'MXHYBRID_PARTITIONS': 'emb*=many'}, ['MXHYBRID_PARTITIONS[emb*]', 'many']),
    slow({'MXHYBRID_SERVERS_PER_HOST': '-2'}, ['MXHYBRID_SERVERS_PER_HOST', "'-2'"]),
    slow({'MXHYBRID_ROUTES': 'emb*=ring'}, ['MXHYBRID_ROUTES[emb*]', 'ring', 'allreduce']),
    slow({'MXHYBRID_TIMEOUT': 'soon'}, ['MXHYBRID_TIMEOUT', 'soon']),
    ({'MXNET_ENGINE_TYPE': 'NaiveEngine'}, ['MXNET_ENGINE_TYPE', 'NaiveEngine', 'unset']),
])
def test_wrong_environment(environment, words):
    result = run_job(BODY, 'horovodrun', workers=2, env=environment, timeout=60).failed(*words)
    assert result.seconds < 45  # before the time limit, and long before workers give up waiting


def test_horovod_without_mxnet(tmp_path):
    (tmp_path / 'horovod').mkdir()
    (tmp_path / 'horovod' / '__init__.py').write_text('')
    body = tmp_path / 'body.py'
    body.write_text('import mxnet as mx, mxhybrid\nmx.kv.create("hybrid")\n')
    result = run_job(body, 'launch.py', workers=2, timeout=60)  # a script's own folder comes first on its path
    result.failed('Horovod with MXNet support is not installed', 'HOROVOD_WITH_MXNET=1')
    assert result.seconds < 45  # before the time limit, and long before workers give up waiting


def test_horovod_initialised_too_early(tmp_path):
    body = tmp_path / 'body.py'
    body.write_text('import mxnet as mx, mxhybrid\nimport horovod.mxnet as hvd\nhvd.init()\nmx.kv.create("hybrid")\n')
    result = run_job(body, 'launch.py', workers=2, timeout=60).failed('hvd.size() is 1', 'launch.py started 2')
    assert result.seconds < 45  # before the time limit, and long before workers give up waiting


@pytest.mark.parametrize('what, words', [
    ('settings', ['MXHYBRID_PARTITIONS', 'worker 1']),
    ('shape', ['workers disagree', 'layer_bias', '[2]', '[3]']),
    slow('name', ['workers disagree', 'layer_', 'other_']), ('number', ['workers disagree', 'sequential0_dense0_bias']),
    ('device', ['workers disagree', 'on cpu ', 'on cpu_pinned']),
    ('deferred', ['workers disagree', '[2]', '[5]']),
    slow('partitions', ["MXHYBRID_PARTITIONS is 'layer*=2' on worker 0 but 'layer*=3' on worker 1", 'same value']),
    slow('own_rows', ['MXHYBRID_OWN_ROWS is 1 on worker 0 but 0 on worker 1', 'same value']),
    ('wrong', ['worker 1 cannot make this store', 'partitions=0', 'at least 1']),
])
def test_workers_disagree(what, words):
    result = run_job(DISAGREE, 'horovodrun', workers=2, args=[what], timeout=60).failed(*words)
    assert 'step 0' not in result.output
    assert result.seconds < 45  # before the time limit, and long before workers give up waiting


def test_workers_make_different_calls():
    result = run_job(DISAGREE, 'horovodrun', workers=2, args=['calls'], timeout=60)
    result.failed('wait for each other in different calls', 'worker 1 in hybrid0.barrier', 'same order')
    assert result.seconds < 40


def test_one_worker_makes_more_steps():
    result = run_job(DISAGREE, 'horovodrun', workers=2, args=['steps'], timeout=60)
    result.failed('worker 0 ended its script after', 'same number of steps')


def test_more_partitions_than_rows_are_reduced_and_reported(tmp_path):
    body = tmp_path / 'body.py'
    body.write_text(
        'import mxnet as mx, mxhybrid\nkv = mxhybrid.create(partitions=99)\n'
        'rows = mx.nd.sparse.zeros("row_sparse", (5, 2))\nkv.init("small", rows)\nprint(kv.report())\n'
        'kv = mxhybrid.create(partitions=99, routes="allreduce")\n'
        'kv.init("held", rows)\nkv.init("summed", mx.nd.zeros((5, 2)))\n'
        'for _ in range(3):\n    kv.push("held", rows)\n    kv.push("summed", rows)\n')
    result = run_job(body, 'horovodrun', workers=2, timeout=60).ok()
    assert 'partitions=99 is more than the 5 rows of small: using 5' in result.output
    assert result.output.count('is more than') == 1  # what goes by allreduce has no partitions
    line = next(line for line in result.output.splitlines() if 'small ' in line and 'server weights' in line)
    assert line.split()[-6:-4] == ['weights', '5'] or ' 5 ' in line
