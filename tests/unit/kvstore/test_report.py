"""The route table: averages, and the numbers that chose the routes."""
import types
from types import MappingProxyType

import pytest

from mxhybrid.kvstore import report
from mxhybrid.routes.costs import Choice, Estimate
from mxhybrid.servers.partitioning import Partitioning
from mxhybrid.telemetry.traffic import Traffic


def route(name, shape, kind, traffic, partitioning=None, wire_dtype='float32'):
    """Return a route with the attributes that the table reads."""
    return types.SimpleNamespace(name=name, shape=shape, kind=kind, traffic=traffic, partitioning=partitioning,
                                 choice=None, all_rows=kind == 'allreduce', dtype='float32', wire_dtype=wire_dtype,
                                 carried_error=None)


def job(**changes):
    """Return a job with the attributes that the table reads."""
    made = {'num_workers': 4, 'num_servers': 2, 'rank': 0, 'hosts': ['a', 'a', 'b', 'b'],
            'transports': 'rows and dense sums by the lane', **changes}
    return types.SimpleNamespace(topology=types.SimpleNamespace(hosts=made.pop('hosts')), **made)


def route_table(job, routes, network=MappingProxyType({}), steps=0):
    """Return the table; without `network`, no host has moved a byte."""
    return report.route_table(job, routes, network, steps)


def test_the_table_names_every_route_with_averages_per_step():
    embedding = route('embedding0_weight', (1000, 8), 'server weights', Traffic(4, 40, 4000, 8000),
                      Partitioning(1000, 8, (2, 3, 5), (1, 0, 1)))
    dense = route('dense0_bias', (7,), 'allreduce', Traffic(2, 14, 3000, 3000))
    title, head, rule, first, second = route_table(job(), [embedding, dense]).split('\n')
    assert title == ('mxhybrid: 4 workers on 2 hosts, 2 servers; averages over 4 steps of rank 0; '
                     'rows and dense sums by the lane')
    assert head.split() == ['parameter', 'shape', 'route', 'partitions', 'servers', 'rows/step', 'pushed/step',
                            'pulled/step']
    assert first.split() == ['embedding0_weight', '1000x8', 'server', 'weights', '3', '0,1', '10', '1.0', 'kB', '2.0',
                             'kB']
    assert second.split() == ['dense0_bias', '7', 'allreduce', '-', '-', 'all', '1.5', 'kB', '1.5', 'kB']
    assert len({len(line) for line in (head, rule, first, second)}) == 1


@pytest.mark.parametrize('kind', ['row allreduce', 'replicated'])
def test_tables_by_allreduce_show_their_pushed_rows(kind):
    line = route_table(job(), [route('table', (1000, 8), kind, Traffic(4, 40, 4000, 4000))]).split('\n')[3]
    assert line.split()[1:] == ['1000x8', *kind.split(), '-', '-', '10', '1.0', 'kB', '1.0', 'kB']


def test_the_title_tells_what_travels_as_something_else():
    title = route_table(job(), [route('w', (3, 2), 'allreduce', Traffic(), wire_dtype='float16'),
                         route('v', (3, 2), 'allreduce', Traffic(), wire_dtype='float16')]).split('\n')[0]
    assert title.endswith('; rows and dense sums by the lane; float32 travels as float16')


def test_one_is_singular_and_zero_steps_divide_nothing():
    alone = job(num_workers=1, num_servers=1, hosts=['a'])
    text = route_table(alone, [route('w', (), 'allreduce', Traffic())])
    assert text.startswith('mxhybrid: 1 worker on 1 host, 1 server; averages over 0 steps of rank 0')
    assert text.endswith('0 B          0 B')
    assert 'over 0 steps' in route_table(alone, [])


def test_one_process_has_no_traffic_to_report():
    title, head, rule, row = route_table(job(num_workers=1, num_servers=0, hosts=['a']),
                                  [route('w', (3, 2), 'local', Traffic())]).split('\n')
    assert title.startswith('mxhybrid: one process') and 'nothing is sent' in title
    assert head.split() == ['parameter', 'shape', 'route'] and row.split() == ['w', '3x2', 'local']


def test_dynamic_tables_show_rows_and_cache_hits():
    def table(name, rows, counts):
        served = types.SimpleNamespace(partitions=3, cache_counts=lambda: counts)
        return types.SimpleNamespace(name=name, traffic=Traffic(2, 40, 800, 1600), param=types.SimpleNamespace(
            rows=rows, width=4, table=served))
    statistics = {'rows': 12, 'memory_bytes': 900, 'file_bytes': 100, 'admitted': 15, 'waiting': 2, 'expired': 3}
    head, _, users, items, local = report.dynamic_tables_table([
        (table('users', None, {'requested': 200, 'cached': 150}), statistics),
        (table('items', 1 << 40, {'requested': 0, 'cached': 0}), {}), (table('local', 7, {}), statistics)]).split('\n')
    assert head.split('  ')[-4:] == ['cache hits', 'rows/step', 'pushed/step', 'pulled/step']
    assert users.split() == ['users', 'any', '4', '12', '1.0', 'kB', '15', '2', '3', '3', '75%', '20', '400', 'B',
                             '800', 'B']
    assert items.split()[1:10] == [str(1 << 40), '4', '-', '-', '-', '-', '-', '3', '-']
    assert local.split()[10] == '-'
    assert report.dynamic_tables_table([]) == ''


def test_network_bytes_per_step_are_shown_below_the_table():
    network = {'allreduce': {'sent': 4000, 'received': 8000}, 'push': {'sent': 0, 'received': 400}}
    dense = route('w', (3, 2), 'allreduce', Traffic(5))
    lines = route_table(job(), [dense], network, 4).split('\n')
    assert lines[4] == '' and lines[5].endswith('averages over 4 steps')
    assert lines[6].split() == ['network', 'sent/step', 'received/step']
    assert [line.split() for line in lines[8:]] == [
        ['allreduce', '1.0', 'kB', '2.0', 'kB'], ['push', '0', 'B', '100', 'B'], ['all', '1.0', 'kB', '2.1', 'kB']]
    nothing = {'allreduce': {'sent': 0, 'received': 0}}
    for moved, steps in ((nothing, 4), (network, 0), ({}, 4)):  # one host, no step yet, ps-lite
        assert route_table(job(), [dense], moved, steps) == route_table(job(), [dense])


def test_the_numbers_behind_a_route_are_shown():
    near, forced, small = (route(name, (100, 2), 'replicated', Traffic()) for name in ('near', 'told', 'small'))
    near.choice = Choice('allreduce', 'measured', 0.5, 0.975, Estimate(2e6, 1.5e6, 0.0204, 0.0111))
    forced.choice = Choice('allreduce', 'forced')
    small.choice = Choice('servers', 'small')
    lines = route_table(job(), [near, forced, small]).split('\n')
    assert lines[6] == '' and 'busiest host' in lines[7]
    assert lines[10].split() == ['near', '50%', '97.5%', '2.0', 'MB', '1.5', 'MB', '20.4', 'ms', '11.1', 'ms',
                                 'allreduce', 'measured']
    assert lines[11].split() == ['told'] + ['-'] * 6 + ['allreduce', 'forced']
    assert len(lines) == 12
    near.choice = forced.choice = None
    assert 'busiest' not in route_table(job(), [near, forced, small])


def test_rounded_parameters_show_saved_bytes_and_carried_error():
    dense = route('layer_weight', (100, 10), 'allreduce', Traffic(2, 200, 2000, 2000, saved=12000), wire_dtype='int8')
    table = route('words', (1000, 8), 'server weights', Traffic(2, 40, 400, 800, saved=1200), wire_dtype='float16')
    exact = route('bias', (10,), 'allreduce', Traffic(2, 20, 80, 80))
    dense.carried_error = 0.0123
    *_, title, head, _, first, second = route_table(job(), [dense, table, exact]).split('\n')
    assert title.startswith('values that are rounded before they travel; carried error: the norm')
    assert head.split() == ['rounded', 'travels', 'as', 'bytes/step', 'saved/step', 'saved', 'carried', 'error']
    assert first.split() == ['layer_weight', 'int8', '2.0', 'kB', '6.0', 'kB', '75%', '1.2%']
    assert second.split() == ['words', 'float16', '600', 'B', '600', 'B', '50%', '-']
