"""Dynamic tables of a script: the time of their rows, their bytes on workers and servers, and bad input."""
import dataclasses

import numpy as np
import pytest

from mxhybrid import nn
from mxhybrid.base.errors import InputError
from mxhybrid.parallel.plans.pipeline_plan import pipeline
from mxhybrid.parallel.plans.strategies import data_parallel
from mxhybrid.planner.cluster.cluster_spec import TransferCost
from mxhybrid.planner.reports.bottleneck_summary import bottleneck_summary
from mxhybrid.planner.reports.dynamic_tables_report import dynamic_tables_report
from mxhybrid.planner.task_graph.dynamic_tables import dynamic_tables
from mxhybrid.planner.task_graph.simulated_tasks import TABLES_LABEL
from tests.helpers.planned_networks import BATCH, cluster, make_planner

COST = TransferCost(1e-4, 1e-5, 1e-9)


def users(**options):
    return nn.HashEmbedding(16, prefix='users_', **options)


def items(rows=1 << 40, dtype='float64'):
    return nn.Embedding(rows, 4, dtype, prefix='items_')


def test_rows_are_pushed_and_pulled_between_steps():
    alone = cluster(1, 1, cost=COST)
    plain = make_planner(alone).predict(data_parallel())
    both = make_planner(alone, tables={users(): 3, items(): 2.5}).predict(data_parallel())
    moved_bytes = BATCH * 3 * (16 * 4 + 8) + BATCH * 2.5 * (4 * 8 + 8)
    assert both.seconds - plain.seconds == pytest.approx(2 * (2 * 1.1e-4 + 1e-9 * moved_bytes))
    rows_bytes = BATCH * 3 * (4 * 16 * 4 + 16) + BATCH * 2.5 * (4 * 4 * 8 + 16)
    np.testing.assert_allclose(both.memory - plain.memory, rows_bytes)
    path = both.critical_path()
    assert {task.kind for task in path if task.label == TABLES_LABEL} == {'push', 'pull'}
    slow = make_planner(cluster(1, 1, cost=TransferCost(1.0, 0, 0)), tables={users(): 3}).predict(data_parallel())
    assert 'of the step is spent pushing rows of dynamic tables: request the rows of the next batch early' in '\n'.join(
        bottleneck_summary(slow.critical_path(), slow.seconds))


def test_rows_of_other_hosts_take_the_links():
    def seconds(rate, tables):
        return make_planner(cluster(2, 1, rate=rate, cost=TransferCost(0, 0, 0)), tables=tables).predict(
            data_parallel()).seconds
    # Each host has 4 samples; it sends half of its rows and receives half of those of the other, twice a step.
    half = BATCH // 2 * 1000 * (16 * 4 + 8) / 2
    added = seconds(1e6, {users(): 1000}) - seconds(1e6, {})
    assert added == pytest.approx(2 * half / 1e6, rel=0.02)
    # Requests of several tables do not wait for each other.
    assert seconds(1e12, {users(): 1, items(): 1}) - seconds(1e12, {users(): 1}) < 1e-5


def test_a_small_table_has_no_impossible_rows():
    table, = dynamic_tables({items(10): 7}, [(0, 4), (4, 5)])
    assert table.batch_rows().tolist() == [10, 7]


def test_searches_with_tables_find_plans_without_pipelines():
    best = make_planner(cluster(2, 1), tables={users(): 3}).search(None, 30)
    assert best.plan.stages is None and best.prediction.memory.min() > 0
    with pytest.raises(InputError, match='a pipeline with dynamic tables is not predicted'):
        make_planner(cluster(2, 1), tables={users(): 3}).predict(pipeline(2, 2))


@pytest.mark.parametrize('tables, message', [
    ({'users': 3}, "tables: 'users' is no dynamic table"), ({'of': 'block'}, 'is no dynamic table')])
def test_other_tables_are_refused(tables, message):
    with pytest.raises(InputError, match=message):
        make_planner(cluster(1, 1), tables=tables)
    for ids in (-1, float('inf'), float('nan'), True, 'many'):
        with pytest.raises(InputError, match='tables: users_weight=.*: give the number of ids'):
            make_planner(cluster(1, 1), tables={users(): ids})


def test_the_report_has_bytes_and_assumptions():
    cluster_spec = cluster(2, 2)
    hosts = tuple(dataclasses.replace(host, memory_bytes=10 ** 9) for host in cluster_spec.hosts)
    tables = dynamic_tables({users(): 26, users(capacity=1000, admit=2): 1, items(): 2}, [(0, 8), (8, 12)])
    text = dynamic_tables_report(tables, dataclasses.replace(cluster_spec, hosts=hosts), 1, 100,
                                 lambda name: '/scratch' if name == 'users_weight' else '')
    head, _, grows, bounded, numbered, *notes = text.split('\n')
    assert head.split('  ')[-1].strip() == 'in' and head.startswith('dynamic table')
    assert grows.split() == ['users_weight', 'any', '16', '208', '56.6', 'kB', 'per', '1000000', '73.5', 'MB',
                             '/scratch']
    assert bounded.split()[6:] == ['1000,', 'capacity', '77.5', 'kB', '/scratch']
    assert numbered.split()[1:4] == [str(1 << 40), '4', '16'] and numbered.split()[-1] == 'memory'
    assert notes == [
        'assumed: no id occurs twice in a batch; servers have one partition of each table on each host; the optimizer '
        'keeps 1 array of state',
        'rows of tables with any number of keys are not known: bytes are those of 1000000 rows',
        'users_weight: a batch of a worker may have 208 distinct rows, but max_batch_rows allows 100: '
        'raise max_batch_rows',
        'rows in memory may take 45629.7 GB on each host, but one has 1.0 GB: give tables a capacity, or keep rows in '
        'files by the setting storage']
    assert dynamic_tables_report([], cluster_spec, 0, 1, str) == ''
