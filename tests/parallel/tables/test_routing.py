"""Tables change between servers and allreduce during training; only the bytes that they move change."""
import pytest
from lab.jobs import run_job

from mxhybrid.routes.costs import MARGIN, NEAR_DENSE, NEAR_DENSE_MARGIN

from ...helpers import comparing
from ...helpers.turns import slow
from . import BODIES

BODY = BODIES / 'routes.py'
OPTIMIZERS = ['sgd', 'adam', 'adagrad', 'rmsprop']
KINDS = {'near': 'replicated', 'bins': 'row allreduce', 'rare': 'server weights'}


@pytest.fixture(scope='module')
def switched(tmp_path_factory):
    """Two workers on a network that a setting declares slow, and the folder of their files."""
    directory = tmp_path_factory.mktemp('switched')
    result = run_job(BODY, 'horovodrun', workers=2, timeout=150,
                     args=['--directory', directory, '--rates', '1e6,1e6']).ok()
    return result, directory


def assert_agree(result):
    """All workers made the same decision, and it follows from the numbers."""
    choices = result.results[0]['choices']
    for rank in result.results:
        assert result.results[rank]['choices'] == choices
    for choice in choices.values():
        margin = NEAR_DENSE_MARGIN if choice['union'] >= NEAR_DENSE else MARGIN
        cheap = choice['allreduce_s'] <= margin * choice['servers_s']
        assert (choice['way'], choice['because']) == ('allreduce' if cheap else 'servers', 'measured')
        assert choice['kind'] in (('server weights', 'server gradients', 'on-demand rows') if choice['way'] == 'servers'
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
    decision = 'net_near_weight travels by allreduce: a step touches 97.7% of its rows'
    assert result.output.count(decision) == len(OPTIMIZERS)


def test_states_of_moved_tables_load_into_one_process(expected, switched):
    result = run_job(BODY, 'none', timeout=120,
                     args=['--kvstore', 'device', '--resume', '--directory', switched[1]]).ok()
    for name in OPTIMIZERS:
        last = {param: values for param, values in expected[name].items() if '/' not in param}
        comparing.assert_equal(last, result.results[0][name], name)


@pytest.mark.parametrize('transport', ['auto', slow('ps-lite')])
def test_measured_on_the_running_job(expected, tmp_path, transport):
    result = run_job(BODY, 'launch.py', workers=3, servers=2, timeout=150,
                     args=['--directory', tmp_path, '--cases', 'adam'],
                     env={'MXHYBRID_ROW_TRANSPORT': transport}).ok()
    comparing.assert_cases({'adam': expected['adam']}, result, 3)
    choices = assert_agree(result)
    assert len(choices) == len(KINDS)
    for choice in choices.values():
        assert 0 < choice['servers_s'] < 60 and 0 < choice['allreduce_s'] < 60


@pytest.fixture(scope='module')
def limits():
    """Two workers with tables that cannot travel by allreduce, and in the end with settings that are not the same."""
    return run_job(BODIES / 'route_limits.py', 'horovodrun', workers=2, timeout=90).failed()


def test_memory_that_lacks_is_said(limits):
    for values in limits.results.values():
        for words in 'routes: big is forced to allreduce', 'every worker needs 1.0 MB, but has 524.3 kB free':
            assert words in values['memory']


def test_unreadably_wide_state_keeps_a_table_on_servers(limits):
    assert 'wide travels by servers' in limits.output and ', where it does not fit' in limits.output
    assert 'fits travels by allreduce' in limits.output


def test_workers_that_force_other_routes_are_told(limits):
    limits.failed("MXHYBRID_ROUTES is 'auto' on worker 0 but 'servers' on worker 1: give all workers the same value")
