"""The recorder of events of a process."""
import threading

import pytest

from mxhybrid.telemetry import recorder as trace
from mxhybrid.telemetry.recorder import OFF, Recorder, in_microseconds

pytestmark = pytest.mark.both_pythons


def events(recorder):
    """Return all events but the names of threads."""
    return [event for event in recorder.take(len(recorder)) if event['ph'] != 'M']


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets."""
    times = [1000]
    monkeypatch.setattr(trace, 'now', lambda: times[0])
    return times


def test_off_makes_no_object_and_keeps_nothing():
    assert not OFF.enabled
    span = OFF.span('push', 'push', rows=3)
    assert span is OFF
    with span as entered:
        entered.note(rows=4)
    assert entered is OFF
    OFF.instant('here', why='x')
    assert vars(OFF) == {}
    with pytest.raises(KeyError), OFF.span('push'):
        raise KeyError('passes')


def test_spans_nest_and_carry_what_was_noted(clock):
    recorder = Recorder('me')
    with recorder.span('outer', 'a', x=1) as outer:
        clock[0] = 1500
        with recorder.span('inner'):
            clock[0] = 1700
        outer.note(rows=3)
        clock[0] = 2000
    inner, outer = events(recorder)
    assert (inner['name'], inner['ts'], inner['dur'], inner['args']) == ('inner', 1500, 200, {})
    assert (outer['name'], outer['ts'], outer['dur']) == ('outer', 1000, 1000)
    assert (outer['ph'], outer['cat'], outer['args']) == ('X', 'a', {'x': 1, 'rows': 3})


def test_a_span_is_recorded_although_its_body_fails(clock):
    recorder = Recorder('me')
    with pytest.raises(KeyError), recorder.span('fails'):
        clock[0] += 5
        raise KeyError('passes')
    assert [(event['name'], event['dur']) for event in events(recorder)] == [('fails', 5)]


def test_operations_that_end_elsewhere_are_paired_by_number(clock):
    recorder = Recorder('me')
    first, second = recorder.new_id(), recorder.new_id()
    recorder.begin('sum', first, 'allreduce', {'bytes': 8})
    recorder.begin('sum', second, 'allreduce', {})
    clock[0] = 1200
    thread = threading.Thread(target=recorder.end, args=('sum', first, 'allreduce'))
    thread.start()
    thread.join()
    begun, other, ended = events(recorder)
    assert (begun['ph'], other['ph'], ended['ph']) == ('b', 'b', 'e')
    assert begun['id2'] == ended['id2'] != other['id2']
    assert begun['tid'] == ended['tid']  # or viewers would not pair them
    assert ended['ts'] - begun['ts'] == 200


def test_beyond_the_limit_events_are_dropped_and_counted():
    recorder = Recorder('me', limit=4)
    for number in range(6):
        recorder.instant(str(number))
    assert len(recorder) == 4 and recorder.dropped == 3
    assert [event['name'] for event in recorder.take(3)] == ['thread_name', '0', '1']
    assert [event['name'] for event in recorder.take(3)] == ['2']
    recorder.instant('late')  # the limit is for the whole job, taken or not
    assert len(recorder) == 0 and recorder.dropped == 4


def test_every_thread_has_its_number_and_name():
    recorder = Recorder('me')
    recorder.instant('here')
    thread = threading.Thread(target=recorder.instant, args=('there',), name='loader')
    thread.start()
    thread.join()
    taken = recorder.take(10)
    names = {event['tid']: event['args']['name'] for event in taken if event['ph'] == 'M'}
    where = {event['name']: names[event['tid']] for event in taken if event['ph'] == 'i'}
    assert where == {'here': threading.current_thread().name, 'there': 'loader'}


def test_nothing_is_lost_between_recording_threads():
    recorder = Recorder('me')
    threads = [threading.Thread(target=lambda: [recorder.instant('x') for _ in range(2000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    taken = []
    while any(thread.is_alive() for thread in threads) or len(recorder):
        taken += recorder.take(100)
    assert sum(event['ph'] == 'i' for event in taken) == 8000


def test_times_become_microseconds_of_the_other_clock(clock):
    recorder = Recorder('me')
    with recorder.span('a'):
        clock[0] = 3500
    name, span = in_microseconds(recorder.take(10), 1000)
    assert (name['ph'], name['ts']) == ('M', 0)
    assert (span['ts'], span['dur']) == (2.0, 2.5)
