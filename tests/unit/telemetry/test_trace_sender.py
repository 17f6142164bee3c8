"""Events travel from every process to the trace file, over real connections, with times of one clock."""
import json
import os
import socket
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from mxhybrid.telemetry import recorder as trace, trace_writer
from mxhybrid.telemetry.trace_file import TraceFile
from mxhybrid.telemetry.trace_sender import ClockOffset, TraceSender
from mxhybrid.telemetry.trace_writer import TraceWriter
from mxhybrid.watchdog.lifeline import Lifeline
from mxhybrid.watchdog.monitor import Monitor

from ...helpers.obedient import Obedient, killed_later
from ...helpers.waiting import until

pytestmark = pytest.mark.both_pythons

LIMIT_S = 20

MEMBER = """
import time
from mxhybrid.telemetry import trace_sender, recorder as trace
from mxhybrid.watchdog.lifeline import Lifeline
address, name, rank, ahead, limit = (sys.argv[2], int(sys.argv[3])), sys.argv[4], *map(int, sys.argv[5:8])
trace_sender.now = trace.now = lambda: time.monotonic_ns() + ahead
trace_sender.INTERVAL_S = 0.0
line = Lifeline(address, name, rank, 10, 'open sesame')
recorder = trace.Recorder(name + ' (host h)', number=int(name.split()[1]), limit=limit)
sender = trace_sender.TraceSender(recorder, line)
while sender._offset.value is None:
    time.sleep(0.01)
def span(name):
    with recorder.span(name, 'test', rank=rank):
        pass
"""

FINISH = 'assert line.finish()'


class Member(Obedient):
    """A process of the job, whose clock is `ahead` nanoseconds ahead of this one's."""

    def __init__(self, monitor, name, rank, ahead=0, limit=1000):
        super().__init__(MEMBER, monitor.address[0], monitor.address[1], name, rank, ahead, limit)
        assert self.answer() == 'ok'

    def finish(self):
        """Let the script end, and wait until the process is released."""
        self.do(FINISH)


class Job:
    """A monitor in this process that writes a trace, and members, which are given to `take`."""

    def __init__(self, path, workers, take):
        self.path, self._take = path, take
        self.monitor = Monitor('127.0.0.1', workers, 1, 'open sesame')
        self.trace_writer = TraceWriter(self.monitor, TraceFile(str(path)), workers)

    def member(self, *args, **keywords):
        """Start a member."""
        member = Member(self.monitor, *args, **keywords)
        self._take(member.process)
        return member

    def events(self):
        """Return all events of the finished file."""
        until(self.path.exists)
        return json.loads(self.path.read_text())


@pytest.fixture
def job(tmp_path):
    """Make a job of a number of workers."""
    with killed_later() as take:
        yield lambda workers: Job(tmp_path / 'trace.json', workers, take)


def test_all_processes_come_together_by_one_clock(job):
    traced_job = job(2)
    origin = traced_job.trace_writer._origin
    ahead = 1000 * 10 ** 9
    workers = [traced_job.member('worker 0', 0), traced_job.member('worker 1', 1, ahead)]
    servers = [traced_job.member('server 1', -1, -ahead), traced_job.member('server 0', -1, 7)]
    bounds = {}
    for number, member in enumerate(workers + servers):
        before = trace.now()
        member.do("span('s%d')" % number)
        bounds['s%d' % number] = ((before - origin) / 1000, (trace.now() - origin) / 1000)
    for worker in workers:
        worker.say(FINISH)
    assert [worker.answer() for worker in workers] == ['ok', 'ok']
    events = traced_job.events()
    spans = {event['name']: event for event in events if event['ph'] == 'X'}
    names = {event['pid']: event['args']['name'] for event in events if event['name'] == 'process_name'}
    assert {name: names[span['pid']] for name, span in spans.items()} == {
        's0': 'worker 0 (host h)', 's1': 'worker 1 (host h)', 's2': 'server 1 (host h)', 's3': 'server 0 (host h)'}
    assert [spans[name]['pid'] for name in ('s0', 's1')] == [0, 1]
    order = {names[event['pid']]: event['args']['sort_index']
             for event in events if event['name'] == 'process_sort_index'}
    assert [name.split(' (')[0] for name in sorted(order, key=order.get)] == ['worker 0', 'worker 1', 'server 0',
                                                                              'server 1']
    for name, (low, high) in bounds.items():
        # Wrong clocks would show in 1000 s; a round trip here takes far less than 5 s.
        assert low - 5e6 <= spans[name]['ts'] <= high + 5e6
    for name in ('s0', 's3'):  # processes with this clock, or 7 ns beside it, are not touched at all
        assert bounds[name][0] - 1 <= spans[name]['ts'] <= bounds[name][1] + 1


def test_records_of_a_killed_process_are_kept(job):
    traced_job = job(2)
    first, second = traced_job.member('worker 0', 0), traced_job.member('worker 1', 1)
    second.do("span('before')")
    unfinished = traced_job.path.with_name('%s.%d.part' % (traced_job.path.name, os.getpid()))
    until(lambda: 'before' in unfinished.read_text())
    first.do("span('survivor')")
    second.process.kill()
    events = traced_job.events()
    assert {'before', 'survivor'} <= {event['name'] for event in events}
    failure = [event for event in events if event['ph'] == 'i']
    assert [(event['s'], event['name'][:13]) for event in failure] == [('g', 'worker 1 died')]
    assert first.process.wait(LIMIT_S) == 1


def test_a_failing_process_sends_its_last_events(job):
    traced_job = job(1)
    server = traced_job.member('server 0', -1)
    worker = traced_job.member('worker 0', 0)
    worker.do("span('last')")
    server.do("span('last of server')")
    worker.do("sender.finish(); line.fail('on purpose')")
    events = traced_job.events()
    assert [event['name'] for event in events if event['ph'] == 'i'] == ['worker 0 failed: on purpose']
    assert {'last', 'last of server'} <= {event['name'] for event in events}
    traced_job.trace_writer.wait()  # returns


def test_a_process_that_fails_early_sends_its_events():
    sent, handlers, recorder = [], {}, trace.Recorder('worker 1 (host h)', number=1)
    sender = TraceSender(recorder, SimpleNamespace(send=sent.append, listen=handlers.__setitem__))
    recorder.instant('failed')
    handlers['pong']([sent[0]['ping'], trace.now(), 0])  # the first of several answers about the clock
    sender.finish()
    names = [event['name'] for message in sent if 'trace' in message for event in message['trace']['events']]
    assert 'failed' in names


def test_malformed_messages_spoil_nothing(job):
    traced_job = job(1)
    worker = traced_job.member('worker 0', 0)
    wrong = [{'trace': 3}, {'trace': {}}, {'trace': {'name': 'x', 'events': []}}, {'pong': 1}, {'ping': None},
             {'trace': {'name': 'x', 'number': 0, 'events': [{'ph': 'X'}]}}, {'no_more_events': 3},
             {'trace': {'name': 'x', 'number': 0, 'events': 7}}, {'trace': {'number': 0, 'events': []}}]
    for message in wrong:
        worker.do('line.send(%r)' % message)
    with socket.create_connection(traced_job.monitor.address, timeout=LIMIT_S) as stranger:  # never said hello
        stranger.sendall(b'{"trace": {"name": "evil", "number": 0, "events": []}}\nnonsense\n')
        worker.do("span('good')")
        worker.finish()
    events = traced_job.events()
    assert [event['name'] for event in events if event['ph'] == 'X'] == ['good']
    assert 'evil' not in traced_job.path.read_text()


def test_dropped_events_are_said(job, caplog):
    traced_job = job(1)
    worker = traced_job.member('worker 0', 0, limit=5)
    for number in range(7):
        worker.do("span('%d')" % number)
    with caplog.at_level('INFO', logger='mxhybrid'):
        worker.finish()
    events = traced_job.events()
    assert len([event for event in events if event['ph'] == 'X']) == 4
    assert 'trace: worker 0 (host h) dropped 3 events beyond its limit' in caplog.messages
    assert 'worker 0 (host h) dropped 3 events beyond its limit' in {event['name'] for event in events}


def test_a_silent_process_delays_the_end_briefly(job, monkeypatch):
    monkeypatch.setattr(trace_writer, 'LAST_EVENTS_S', 0.2)
    traced_job = job(1)
    worker = traced_job.member('worker 0', 0)
    server = traced_job.member('server 0', -1)
    server.process.send_signal(19)  # SIGSTOP
    worker.do("span('good')")
    worker.finish()
    assert 'good' in {event['name'] for event in traced_job.events()}


def test_a_listener_added_meanwhile_disturbs_nobody():
    line, heard = Lifeline.__new__(Lifeline), []
    line._listeners = {'first': lambda _: line.listen('second', heard.append)}
    line._handle({'first': 1})
    line._handle({'second': 2})
    assert heard == [2]


# ------------------------------------------------------------------------------------------ offsets between clocks

DELAYS = st.integers(0, 10 ** 7)
TRIPS = st.lists(st.tuples(st.integers(0, 10 ** 15), DELAYS, DELAYS), min_size=1, max_size=10)


@given(st.integers(-10 ** 15, 10 ** 15), TRIPS)
def test_the_error_is_half_the_shortest_round_trip(ahead, trips):
    offset = ClockOffset()
    for start, there, back in trips:
        offset.sample(start, start + there + ahead, start + there + back)
    offset.settle()
    shortest = min(there + back for _, there, back in trips)
    limit = shortest if offset.value == 0 else (shortest + 1) // 2
    assert abs(offset.value - ahead) <= limit


@given(TRIPS)
def test_processes_with_one_clock_agree_exactly(trips):
    offset = ClockOffset()
    for start, there, back in trips:
        offset.sample(start, start + there, start + there + back)
        offset.settle()
        assert offset.value == 0


def test_an_offset_stays_until_the_clock_drifts():
    offset = ClockOffset()
    offset.settle()
    assert offset.value is None
    # An answer before the question; then ranges of 950 to 1050, 980 to 1040, and 1020 to 1030.
    for sample, value in (((200, 1000, 100), None), ((100, 1150, 200), 1000), ((300, 1340, 360), 1000),
                          ((500, 1530, 510), 1025)):
        offset.sample(*sample)
        offset.settle()
        assert offset.value == value
