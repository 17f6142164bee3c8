"""The table of predicted and measured steps in the benchmark, and the processors of its hosts."""
import os

import pytest
from lab.benchmark import bounds, plans, plot, report, testbeds
from lab.emulation import EmulationError

from .test_benchmark_report import round_figures

RUN = {'case': 'small', 'hosts': 2, 'workers': 1, 'mbit': 100.0, 'origin': 'search', 'rounds': [{}, {}], 'counted': 1,
       'predicted': {'data': 1.0, 'trick': 0.52, 'model 2': 0.5, 'found': 0.2},
       'measured': {'data': 1.1, 'trick': 0.5, 'model 2': 0.505, 'found': 0.4}}


def test_errors_are_shares_of_what_was_measured():
    assert plans.error_of(RUN, 'data') == pytest.approx(-1 / 11)
    assert plans.error_of(RUN, 'found') == pytest.approx(-0.5)


@pytest.mark.parametrize('predicted, expected', [
    ({}, 1.0),  # the two in the middle are a tie
    ({'found': 0.51}, 0.6),
    ({'data': 0.1}, -0.2),
    ({'data': 0.1, 'found': 0.6}, -1.0)])
def test_order_counts_where_plans_differ(predicted, expected):
    run = dict(RUN, predicted={**RUN['predicted'], **predicted})
    assert plans.tau_of(run) == pytest.approx(expected)


def test_equal_plans_have_no_order():
    assert plans.tau_of(dict(RUN, measured=dict.fromkeys(RUN['measured'], 1.0))) is None


def test_the_summary_of_all_plans():
    text = plans.summary([RUN, dict(RUN, case='large')])
    assert '8 plans: median error 6.5 %, 90 % of them at most 50.0 %' in text
    assert 'small 2 x 1 2.75, large 2 x 1 2.75' in text
    lines = plans.table(RUN).splitlines()
    assert 'small on 2 hosts x 1 workers, 100 Mbit/s; 1 of 2 rounds count; found is from search' in lines[1]
    assert [line.split()[0] for line in lines[4:]] == ['found', 'trick', 'model', 'data']


def case_of(*moved):
    """A network of which rounds have an anchor that moves so; each takes longer than the one before."""
    case = plans._Case('small')
    case.plans, case.origin = {'trick': {}, 'data': {}}, 'search'
    for number, share in enumerate(moved, 1):
        case.add({'trick': 1.0 * number, 'data': 9.0}, {'trick': 2.0 * number, 'data': 10.0 * number,
                                                        'trick again': 2.0 * number * (1 + share)})
    return case.figures()


@pytest.mark.parametrize('moved, counted, data, trick', [
    ((0.0, 0.0, 0.0), 3, 20.0, 4.0), ((0.06, 0.0, -0.051), 1, 20.0, 4.0), ((0.04, 0.5), 1, 10.0, 2.04),
    ((0.2, -0.2), 2, 15.0, 2.9)])
def test_rounds_on_a_changed_machine_do_not_count(moved, counted, data, trick):
    found = case_of(*moved)
    assert (found['counted'], len(found['rounds'])) == (counted, len(moved))
    assert found['measured'] == {'trick': pytest.approx(trick), 'data': data} and found['predicted']['data'] == 9.0


@pytest.mark.parametrize('predicted_s, least_steps, lengths', [
    (0.01, 10, (50, 5)), (0.01, 100, (100, 2)), (0.07, 10, (10, 4)), (1.0, 10, (10, 1)), (30.0, 3, (3, 1))])
def test_short_steps_are_measured_for_seconds(predicted_s, least_steps, lengths):
    assert plans.lengths(predicted_s, least_steps) == lengths


def test_rounds_calibrated_on_a_busy_machine_do_not_count():
    case = plans._Case('small')
    case.plans = {'trick': {}}
    case.add({'trick': 9.0}, {'trick': 2.0, 'trick again': 2.0}, True)
    assert case.figures()['predicted'] == {'trick': 9.0}  # no other round does
    case.add({'trick': 1.0}, {'trick': 2.0, 'trick again': 2.0})
    assert case.figures()['predicted'] == {'trick': 1.0} and case.figures()['counted'] == 1


def exchange_of(hosts):
    """Return the figures of an exchange with a number of hosts, of which only one contender counts bytes."""
    contenders = {name: report.over_rounds([round_figures(1.0, [0.9, 1.1], sent)], 100)
                  for name, sent in (('hybrid', 5e6), ('dist_sync', None))}
    return {'hosts': hosts, 'workers': 2, 'mbit': 100.0, 'model': 'a model', 'unit': 'words', 'contenders': contenders,
            'bound': report.bound_row(bounds.Bound(10, 4e6, 4e6, 0.5), 100)}


@pytest.mark.parametrize('runs', [[RUN, dict(RUN, case='large', mbit=None)], [exchange_of(4)],
                                  [exchange_of(2), exchange_of(4)]], ids=['plans', 'bars', 'a curve'])
def test_all_are_drawn(tmp_path, runs):
    file = tmp_path / 'plans.png'
    plot.draw({'settings': {'workload': 'lm1b'}, 'runs': runs}, str(file))
    assert file.read_bytes()[:4] == b'\x89PNG'


def test_hosts_share_out_the_processors(monkeypatch):
    monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: {0, 1, 2, 3, 4})
    monkeypatch.setattr(testbeds.Emulated, 'argv', lambda self, host, argv: ['there', *argv])
    testbed = testbeds.Limited(2, 100.0, 'reno')
    assert testbed.argv(0, ['train']) == ['taskset', '-c', '0,1', 'there', 'train']
    assert testbed.argv(1, ['train']) == ['taskset', '-c', '2,3', 'there', 'train']


def test_more_hosts_than_quotas_allow(monkeypatch):
    monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: {0, 1})
    testbed = testbeds.Limited(5, 100.0, 'reno')
    with pytest.raises(EmulationError, match='emulate at most 4'):
        testbed._make_groups()
