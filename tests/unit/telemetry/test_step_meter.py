"""Steps and calls of a store, and the traffic of a parameter."""
import itertools
from types import SimpleNamespace

import pytest

from mxhybrid.telemetry import recorder as trace, step_meter as meter_module
from mxhybrid.telemetry.recorder import OFF, Recorder
from mxhybrid.telemetry.step_meter import NO_METER, StepMeter
from mxhybrid.telemetry.traffic import Traffic

pytestmark = pytest.mark.both_pythons


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Every look at the clock is 10 ns after the one before."""
    ticks = itertools.count(0, 10)
    for module in (trace, meter_module):
        monkeypatch.setattr(module, 'now', lambda: next(ticks))


def way(name, kind, rows=10, has_table=True):
    """Return a route with the attributes that a meter reads."""
    return SimpleNamespace(key=name, name=name, kind=kind, rows=rows, traffic=Traffic(), has_table=has_table,
                           all_rows=kind == 'allreduce')


def make(trace=OFF, routes=(), network=lambda: None):
    """Return a meter, and the list of the records that it writes."""
    records = []
    return StepMeter(0, trace, SimpleNamespace(write=records.append), {item.name: item for item in routes},
                     lambda: None, network), records


def end_step(meter):
    with meter.update():
        pass


def test_no_meter_does_nothing():
    for context in (NO_METER.call('push', None), NO_METER.allreduce_grads(), NO_METER.update()):
        with context:
            pass
    assert NO_METER.over({}) is NO_METER and not NO_METER.enabled


def test_records_of_steps():
    words, bins = way('words', 'server weights', 10), way('bins', 'server gradients', 4)
    dense = way('dense', 'allreduce', has_table=False)
    meter, records = make(routes=[words, bins, dense])
    for step in range(2):
        with meter.allreduce_grads():
            with meter.call('push', words):
                words.traffic.add(rows=5 - step, pushed=50, pulled=7)
            with meter.call('push', bins):
                bins.traffic.add(rows=0, pushed=0)
            with meter.call('pushpull', dense):
                dense.traffic.add(rows=10, pushed=4, pulled=4)
        end_step(meter)
    first, second = records
    assert (first['step'], second['step'], second['store']) == (1, 2, 0)
    assert first['alpha'] == {'words': 0.5, 'bins': 0} and second['alpha'] == {'words': 0.4, 'bins': 0}
    assert second['routes'] == {'server weights': {'rows': 4, 'pushed': 50, 'pulled': 7},
                                'server gradients': {'rows': 0, 'pushed': 0, 'pulled': 0},
                                'allreduce': {'rows': 10, 'pushed': 4, 'pulled': 4}}
    assert second['tables'] == {'words': {'route': 'server weights', 'rows': 4, 'pushed': 50, 'pulled': 7},
                                'bins': {'route': 'server gradients', 'rows': 0, 'pushed': 0, 'pulled': 0}}
    assert second['store_seconds'] == pytest.approx(30e-9)  # three calls, each from one look to the next
    assert second['seconds'] == pytest.approx(100e-9)
    assert second['wall'] >= first['wall'] > 1e9


def test_dynamic_tables_are_recorded_with_cache_hits():
    words = way('words', 'server weights', 10)
    users, items = way('users', 'dynamic table', None), way('items', 'dynamic table', 20)
    counts = {'users': {'requested': 0, 'cached': 0}, 'items': {}}
    for table in (users, items):
        table.cache_counts = lambda name=table.name: dict(counts[name])
    meter, records = make(routes=[words])
    meter.show_tables(lambda: [users, items])
    for requested, cached in ((8, 3), (10, 4), (2, 1)):  # the last ones are of a table that was made again
        counts['users'] = {'requested': requested, 'cached': cached}
        with meter.allreduce_grads(), meter.call('push', users):
            users.traffic.add(rows=5, pushed=50, pulled=7)
        end_step(meter)
    tables = [record['tables'] for record in records]
    moved = {'route': 'dynamic table', 'rows': 5, 'pushed': 50, 'pulled': 7}
    assert [table['users'] for table in tables] == [
        dict(moved, requested=requested, cached=cached) for requested, cached in ((8, 3), (2, 1), (2, 1))]
    assert tables[0]['items'] == {'route': 'dynamic table', 'rows': 0, 'pushed': 0, 'pulled': 0}
    assert records[0]['alpha'] == {'words': 0, 'items': 0}
    assert records[0]['routes']['dynamic table'] == {'rows': 5, 'pushed': 50, 'pulled': 7, 'requested': 8,
                                                         'cached': 3}


def test_spans_of_a_step_nest():
    recorder = Recorder('me')
    words = way('words', 'server weights')
    meter, _ = make(recorder, [words])
    with meter.call('row_sparse_pull', words):
        words.traffic.add(steps=0, pulled=8)
    with meter.allreduce_grads(), meter.call('push', words):
        words.traffic.add(rows=3, pushed=24)
    end_step(meter)
    events = {event['name']: event for event in recorder.take(100) if event['ph'] == 'X'}
    assert set(events) == {'row_sparse_pull words', 'forward/backward', 'push words', 'exchange', 'update', 'step 1'}

    def within(inner, outer):
        inner, outer = events[inner], events[outer]
        return outer['ts'] <= inner['ts'] and inner['ts'] + inner['dur'] <= outer['ts'] + outer['dur']

    assert within('row_sparse_pull words', 'forward/backward') and within('push words', 'exchange')
    assert within('exchange', 'step 1') and within('update', 'step 1')
    assert events['forward/backward']['ts'] + events['forward/backward']['dur'] == events['step 1']['ts']
    assert events['push words']['args'] == {'parameter': 'words', 'step': 1, 'rows': 3, 'pushed': 24, 'pulled': 0,
                                            'route': 'server weights'}
    assert events['push words']['cat'] == 'push,server weights'


def test_a_step_may_exchange_twice_and_fail():
    recorder = Recorder('me')
    meter, records = make(recorder)
    for _ in range(2):
        with meter.allreduce_grads():
            pass
    with pytest.raises(UserWarning), meter.update():
        raise UserWarning('stale')
    assert records == []
    end_step(meter)
    assert [record['step'] for record in records] == [1]
    names = [event['name'] for event in recorder.take(100)]
    assert names.count('forward/backward') == names.count('step 1') == 1


def test_steps_go_on_over_new_routes():
    old, new = way('words', 'local', has_table=False), way('words', 'local', has_table=False)
    meter, records = make(routes=[old])
    old.traffic.add(rows=4)
    end_step(meter)
    meter = meter.over({'words': new})
    new.traffic.add(rows=1)
    end_step(meter)
    assert [(record['step'], record['routes']['local']['rows'], record['alpha']) for record in records] == [
        (1, 4, {'words': 0.4}), (2, 1, {'words': 0.1})]


def test_records_have_the_bytes_since_the_last():
    moved = {'allreduce': {'sent': 100, 'received': 50}, 'push': {'sent': 0, 'received': 0}}
    meter, records = make(network=lambda: {kind: dict(ways) for kind, ways in moved.items()})
    for more in (7, 9):
        moved['allreduce']['sent'] += more
        moved['push']['received'] += 1
        end_step(meter)
    assert [record['network'] for record in records] == [
        {'allreduce': {'sent': more, 'received': 0}, 'push': {'sent': 0, 'received': 1}} for more in (7, 9)]
    meter, records = make()  # where nobody counts
    end_step(meter)
    assert 'network' not in records[0]


def test_after_each_step_the_caller_is_told():
    told = []
    meter = StepMeter(0, OFF, None, {}, lambda: told.append(True), lambda: None)
    with meter.update():
        assert not told
    assert told == [True]


def test_traffic_adds_up():
    traffic = Traffic()
    traffic.add(rows=3, pushed=100)
    traffic.add(rows=5, pushed=60)
    traffic.add(steps=0, pulled=40)
    assert traffic == Traffic(steps=2, rows=8, pushed=160, pulled=40)
