"""Tables choose between servers and allreduce in mid-training; nothing but the bytes they move changes."""
import pytest
from lab.jobs import run_job

from mxhybrid.routes.choice import MARGIN, NEAR_DENSE, NEAR_DENSE_MARGIN

from ...helpers import comparing
from ...helpers.turns import slow
from . import BODIES

BODY = BODIES / 'routes.py'
OPTIMIZERS = ['sgd', 'adam', 'adagrad', 'rmsprop']
KINDS = {'near': 'replicated', 'bins': 'row allreduce', 'rare': 'server weights'}


@pytest.fixture(scope='module')
def expected(tmp_path_factory):
    """MXNet alone."""
    return comparing.reference(BODY, '--directory', str(tmp_path_factory.mktemp('alone')), '--optimizers',
                               ','.join(OPTIMIZERS))


@pytest.fixture(scope='module')
def switched(tmp_path_factory):
    """Two workers on what is said to be a slow network, and where they saved."""
    directory = tmp_path_factory.mktemp('switched')
    result = run_job(BODY, 'horovodrun', workers=2, timeout=150,
                     args=['--directory', str(directory), '--optimizers', ','.join(OPTIMIZERS),
                           '--rates', '1e6,1e6']).ok()
    return result, directory


def assert_agree(result):
    """All workers decided alike, and as the numbers say."""
    choices = result.results[0]['choices']
    for rank in result.results:
        assert result.results[rank]['choices'] == choices
    for choice in choices.values():
        margin = NEAR_DENSE_MARGIN if choice['union'] >= NEAR_DENSE else MARGIN
        cheap = choice['allreduce_s'] <= margin * choice['servers_s']
        assert (choice['way'], choice['because']) == ('allreduce' if cheap else 'servers', 'measured')
        assert choice['kind'] in (('server weights', 'server gradients', 'own rows') if choice['way'] == 'servers'
                                  else ('replicated', 'row allreduce'))
    return choices


def test_near_dense_tables_move_in_mid_training(expected, switched):
    result, _ = switched
    comparing.assert_cases({name: expected[name] for name in OPTIMIZERS}, result, 2)
    choices = assert_agree(result)
    assert {name: choice['kind'] for name, choice in choices.items()} == {
        '%s/net_%s_weight' % (optimizer, table): kind for optimizer in OPTIMIZERS for table, kind in KINDS.items()}


def test_report_shows_the_numbers(switched):
    result, _ = switched
    lines = {line.split()[0]: line for line in result.results[0]['table'].split('because')[1].splitlines()[2:]}
    assert sorted(lines) == ['net_%s_weight' % table for table in sorted(KINDS)]
    near = result.results[0]['choices']['sgd/net_near_weight']
    for text in ('97.7%', '2.1 MB', '%.1f ms' % (1e3 * near['servers_s']), '%.1f ms' % (1e3 * near['allreduce_s']),
                 'allreduce', 'measured'):
        assert text in lines['net_near_weight']
    assert lines['net_rare_weight'].split()[-2:] == ['servers', 'measured']
    assert result.output.count('net_near_weight goes by allreduce: a step touches 97.7% of its rows') == len(OPTIMIZERS)


def test_states_of_moved_tables_load_into_one_process(expected, switched):
    result = run_job(BODY, 'none', timeout=120, args=[
        '--kvstore', 'device', '--resume', '--directory', str(switched[1]), '--optimizers', ','.join(OPTIMIZERS)]).ok()
    for name in OPTIMIZERS:
        last = {param: values for param, values in expected[name].items() if '/' not in param}
        comparing.assert_equal(last, result.results[0][name], name)


@pytest.mark.parametrize('wire', ['auto', slow('ps-lite')])
def test_measured_on_the_running_job(expected, tmp_path, wire):
    result = run_job(BODY, 'launch.py', workers=3, servers=2, timeout=150,
                     args=['--directory', str(tmp_path), '--optimizers', 'adam'],
                     env={'MXHYBRID_WIRE': wire}).ok()
    comparing.assert_cases({'adam': expected['adam']}, result, 3)
    choices = assert_agree(result)
    assert len(choices) == len(KINDS)
    for choice in choices.values():
        assert 0 < choice['servers_s'] < 60 and 0 < choice['allreduce_s'] < 60


def test_memory_that_lacks_is_said(tmp_path):
    body = tmp_path / 'body.py'
    body.write_text(
        'import mxnet as mx, mxhybrid\nimport mxhybrid.routes.chooser\n'
        'mxhybrid.routes.chooser.available_bytes = lambda: 1 << 20  # of 2 workers\n'
        'kv = mxhybrid.create(routes="big*=allreduce")\n'
        'kv.init("small", mx.nd.sparse.zeros("row_sparse", (50, 2)))\n'
        'kv.init("big", mx.nd.sparse.zeros("row_sparse", (50000, 2)))\n')
    run_job(body, 'horovodrun', workers=2, timeout=60).failed(
        'routes: big is forced to allreduce', 'every worker needs 1.0 MB, but has 524.3 kB free')


def test_rows_of_state_too_wide_to_be_read_keep_a_table_on_the_servers(tmp_path):
    body = tmp_path / 'body.py'
    body.write_text(
        'import mxnet as mx, mxhybrid\nfrom mxhybrid.routes.costs import Speed, Network\n'
        'kv = mxhybrid.create()\nkv._job.measured["network"] = Network(Speed(0.1, 1e6), Speed(0.001, 1e9))\n'
        'kv.set_optimizer(mx.optimizer.SGD(momentum=0.9))\n'
        'for name, width in (("wide", 65537), ("fits", 65536)):\n'
        '    rows = mx.nd.ones((8, width)).tostype("row_sparse")\n'
        '    kv.init(name, rows)\n'
        '    for _ in range(12):\n        kv.push(name, rows)\n'
        'print(kv.report())\n')
    result = run_job(body, 'horovodrun', workers=2, timeout=60).ok()
    assert 'wide goes by servers' in result.output and ', where it does not fit' in result.output
    assert 'fits goes by allreduce' in result.output


def test_workers_that_force_other_routes_are_told(tmp_path):
    body = tmp_path / 'body.py'
    body.write_text(
        'import os, mxnet as mx, mxhybrid\n'
        'mxhybrid.create()\n'
        'kv = mxhybrid.create(routes="servers" if os.environ["HOROVOD_RANK"] == "1" else "auto")\n'
        'kv.init("table", mx.nd.sparse.zeros("row_sparse", (5, 2)))\n')
    run_job(body, 'horovodrun', workers=2, timeout=60).failed(
        "MXHYBRID_ROUTES is 'auto' on worker 0 but 'servers' on worker 1: give all workers the same value")
